// Where the ranks of one communicator meet, in their streams.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/nccl/nccl_api.h"
#include "core/clock.h"

namespace rueda::test {

// One collective of one rank.
struct Collective {
  std::string function;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t count = 0;
  nccl::DataTypeNumber dtype = nccl::uint8;
  int op = nccl::sum;
  int root = 0;

  // What all ranks must have alike.
  [[nodiscard]] std::string signature() const;
};

struct Message {
  std::vector<std::byte> content;
};

class Meeting {
 public:
  explicit Meeting(int size) : size_(size) {}

  void join();
  [[nodiscard]] bool is_complete();
  [[nodiscard]] int size() const { return size_; }

  // Waits for the other ranks, and returns when the collective is done: empty, or what is wrong
  // with it. `gives_up` is asked from time to time.
  using GivesUp = std::function<bool()>;
  std::string take_part(std::uint64_t number, int rank, const Collective& collective,
                        Duration longest, const GivesUp& gives_up);
  void send(int from, int to, std::vector<std::byte> content);
  std::string receive(int from, int to, std::byte* memory, std::size_t bytes, Duration longest,
                      const GivesUp& gives_up);

 private:
  struct Round {
    std::vector<std::optional<Collective>> parts;
    std::size_t arrived = 0;
    std::size_t left = 0;
    bool done = false;
    std::string problem;
  };
  // Whether `holds` came to hold; false with an explanation otherwise.
  template <class Condition>
  std::string wait(std::unique_lock<std::mutex>& lock, Duration longest, const GivesUp& gives_up,
                   const std::string& awaited, const Condition& holds);
  std::string perform(Round& round) const;

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int joined_ = 0;
  std::map<std::uint64_t, Round> rounds_;
  std::map<std::pair<int, int>, std::deque<Message>> messages_;
};

[[nodiscard]] std::size_t bytes_of(nccl::DataTypeNumber dtype);

}  // namespace rueda::test
