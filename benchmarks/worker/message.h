// What the driver of `rueda bench` and its workers say to each other, over a Unix socket: named
// values, then bytes. benchmarks/driver/wire.py is the other end.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace rueda_bench {

struct Message {
  std::map<std::string, std::string> values;
  std::vector<std::byte> payload;

  // The value of `name`; throws std::runtime_error where the message has none.
  [[nodiscard]] const std::string& text(const std::string& name) const;
  [[nodiscard]] long long number(const std::string& name) const;
};

// A connection to the driver. Failing to send or receive throws std::runtime_error.
class Connection {
 public:
  // `address` names an abstract Unix socket.
  explicit Connection(const std::string& address);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void send(const Message& message);
  // Blocks, at no cost, until the driver says something: false when it has gone.
  [[nodiscard]] bool receive(Message& message);
  // The file descriptor that the driver hands over.
  [[nodiscard]] int receive_descriptor();

 private:
  [[nodiscard]] bool read_all(void* into, std::size_t bytes);
  void write_all(const void* from, std::size_t bytes);

  int fd_;
};

}  // namespace rueda_bench
