#include "membership/bootstrap_rendezvous.h"

#include <arpa/inet.h>

#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "core/strings.h"
#include "core/wait_fd.h"
#include "membership/rendezvous_store.h"

namespace rueda {

namespace {

using Verb = RendezvousWords::Verb;

constexpr auto between_tries = std::chrono::milliseconds(20);
// For questions that the store answers at once.
constexpr auto answer_patience = std::chrono::seconds(30);

Status failed(std::string text) {
  return Status(ErrorCode::initialization, std::move(text));
}

class RendezvousBootstrap final : public Bootstrap {
 public:
  RendezvousBootstrap(SocketLink link, int rank, int size)
      : link_(std::move(link)), rank_(rank), size_(size) {}

  std::string_view name() const override { return "rendezvous"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Status put(const std::string& key, const std::string& value) override {
    return ask({Verb::put, 0, 0, key, value}, Clock::now() + answer_patience).status();
  }

  Expected<std::string> get(const std::string& key) override {
    auto answer = ask({Verb::get, 0, 0, key, {}}, Clock::now() + answer_patience);
    if (!answer) return answer.status();
    return std::move(answer->value);
  }

  Status barrier(Time deadline) override {
    const auto passed = ask({Verb::barrier, 0, 0, {}, {}}, deadline);
    if (passed || passed.status().code() != ErrorCode::timeout) return passed.status();
    const auto missing = ask({Verb::missing, 0, 0, {}, {}}, Clock::now() + std::chrono::seconds(2));
    if (!missing)
      return failed("the barrier was not passed before the deadline").because(missing.status());
    if (missing.value().verb == Verb::ok) {  // it came about just now
      return next_answer(Clock::now() + answer_patience).status();
    }
    link_.drop();  // the others must not take this rank's word for granted any more
    return failed(str("waited for ", missing.value().value, " until the deadline"));
  }

  // ErrorCode::timeout where there is no answer before the deadline, ErrorCode::transport where the
  // connection broke, ErrorCode::initialization where the answer is no.
  Expected<RendezvousWords> ask(const RendezvousWords& question, Time deadline) {
    if (!link_.is_open()) return lost(Status(ErrorCode::transport, "it was given up"));
    link_.enqueue(question.to_frame());
    return next_answer(deadline);
  }

  void keep(std::unique_ptr<RendezvousStore> store) { store_ = std::move(store); }

 private:
  static Status lost(const Status& cause) {
    return Status(ErrorCode::transport, "rank 0, which serves the rendezvous, cannot be reached")
        .because(cause);
  }

  Expected<RendezvousWords> next_answer(Time deadline) {
    Status broken;
    while (true) {
      const auto frame = link_.next_frame();
      if (!frame) return lost(frame.status());
      if (frame.value()) return understand(frame.value()->payload);
      if (!broken) return lost(broken);
      if (Clock::now() >= deadline)
        return Status(ErrorCode::timeout, "no answer from the rendezvous");
      if (link_.wants_to_write()) {
        broken = link_.write();
        if (link_.wants_to_write()) wait_writable(link_.fd(), deadline);
      } else if (wait_readable(link_.fd(), deadline)) {
        broken = link_.read();
      }
    }
  }

  static Expected<RendezvousWords> understand(std::span<const std::byte> payload) {
    auto answer = RendezvousWords::parse(payload);
    if (answer && answer->verb == Verb::error) return failed(answer->value);
    return answer;
  }

  // Declared first, destroyed last: the store waits for this rank, too, to leave.
  std::unique_ptr<RendezvousStore> store_;
  SocketLink link_;
  const int rank_;
  const int size_;
};

// A name may resolve to a loopback on the very host it names, so rank 0 listens everywhere then.
std::string address_to_serve(const std::string& address) {
  const auto colon = address.rfind(':');
  if (!address.starts_with("tcp:") || colon <= 4) return address;
  const std::string host = address.substr(4, colon - 4);
  in_addr numeric{};
  if (host.starts_with('[') || host == "localhost" ||
      ::inet_pton(AF_INET, host.c_str(), &numeric) == 1) {
    return address;
  }
  return "tcp:" + address.substr(colon);
}

Expected<std::unique_ptr<RendezvousStore>> serve(const std::string& address, int size,
                                                 Time deadline) {
  while (true) {
    auto listener = listen_on(address_to_serve(address));
    if (listener) return std::make_unique<RendezvousStore>(std::move(listener).value(), size);
    if (Clock::now() >= deadline) {
      return failed("the rendezvous cannot be served").because(listener.status());
    }
    std::this_thread::sleep_for(between_tries);
  }
}

Expected<SocketLink> try_to_connect(const std::string& address, Time deadline) {
  auto fd = start_connecting(address);
  if (!fd) return fd.status();
  if (!wait_writable(fd->get(), deadline)) {
    return Status(ErrorCode::timeout, "no connection before the deadline");
  }
  if (Status status = finish_connecting(fd->get()); !status) return status;
  return SocketLink(std::move(fd).value(), false);
}

// One attempt. ErrorCode::initialization where another would be in vain.
Expected<std::unique_ptr<RendezvousBootstrap>> try_to_enter(const std::string& address, int rank,
                                                            int size, Time deadline) {
  auto link = try_to_connect(address, deadline);
  if (!link) return link.status();
  auto entered = std::make_unique<RendezvousBootstrap>(std::move(link).value(), rank, size);
  const auto answer = entered->ask(
      {Verb::hello, static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(size), {}, {}},
      deadline);
  if (!answer) return answer.status();
  if (answer.value().verb == Verb::ok) return entered;
  return Status(ErrorCode::timeout, str("another process is rank ", rank,
                                        " there, or a rank has not left the world before"));
}

}  // namespace

Expected<std::unique_ptr<Bootstrap>> connect_rendezvous(const std::string& address, int rank,
                                                        int size, Time deadline) {
  if (rank < 0 || rank >= size) return failed(str("there is no rank ", rank, " among ", size));
  if (!address.starts_with("unix:@") && !address.starts_with("tcp:")) {
    return failed(str("'", address, "' is no rendezvous: give unix:@name or tcp:host:port"));
  }
  std::unique_ptr<RendezvousStore> store;
  if (rank == 0) {
    auto served = serve(address, size, deadline);
    if (!served) return served.status();
    store = std::move(served).value();
  }
  Status obstacle(ErrorCode::timeout, "no answer");
  while (true) {
    auto entered = try_to_enter(address, rank, size, deadline);
    if (entered) {
      entered.value()->keep(std::move(store));
      return std::unique_ptr<Bootstrap>(std::move(entered).value());
    }
    if (entered.status().code() == ErrorCode::initialization) return entered.status();
    if (Clock::now() >= deadline) break;
    obstacle = entered.status();  // not the one of the last attempt, which the deadline cut short
    std::this_thread::sleep_for(between_tries);
  }
  return failed(str("rank ", rank, " did not get into the rendezvous at ", address,
                    ", which rank 0 serves, before the deadline"))
      .because(obstacle);
}

}  // namespace rueda
