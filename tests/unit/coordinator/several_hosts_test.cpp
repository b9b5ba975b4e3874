// Worlds of several hosts, simulated by threads: ranks of one host share memory, ranks of different
// hosts use the transport.
#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "api/persistent_kinds.h"
#include "core/strings.h"
#include "ranks/engine_ranks.h"

namespace rueda::test::several_hosts_test {

namespace {

struct Hosts {
  std::vector<int> host_of;
  [[nodiscard]] int size() const { return static_cast<int>(host_of.size()); }
  [[nodiscard]] std::vector<int> ranks_of(int host) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < size(); ++rank) {
      if (host_of[static_cast<std::size_t>(rank)] == host) ranks.push_back(rank);
    }
    return ranks;
  }
  [[nodiscard]] int of(int rank) const { return host_of[static_cast<std::size_t>(rank)]; }
};

// Ranks in blocks, interleaved, in unequal numbers, and alone.
Hosts some_hosts() {
  return {GENERATE(std::vector<int>{0, 0, 1, 1}, std::vector<int>{0, 1, 0, 1},
                   std::vector<int>{1, 0, 0, 0}, std::vector<int>{0, 0, 1, 2})};
}

void run_on(const Hosts& hosts, const std::function<void(int, Runtime&)>& body) {
  run_engines(hosts.size(), {}, body, nullptr, Sharing::memory, hosts.host_of);
}

// Adds a set of the ranks of each host; all ranks take part in adding every set.
std::vector<int> sets_of(const Hosts& hosts, Runtime& engine) {
  std::vector<int> sets;
  for (int host = 0; host < 3; ++host) {
    const auto ranks = hosts.ranks_of(host);
    sets.push_back(ranks.empty() ? -1 : add_set(engine, ranks));
  }
  return sets;
}

float sum(Runtime& engine, int set, const std::string& name, std::size_t length) {
  std::vector<float> tensor(length, 1);
  finish(submit(engine, allreduce_of(tensor, DataType::float32, name), set));
  expect(tensor.front() == tensor.back(), "one sum");
  return tensor.back();
}

}  // namespace

TEST_CASE("the world's operations go over links, those of a host through its memory") {
  const Hosts hosts = some_hosts();
  run_on(hosts, [&](int rank, Runtime& engine) {
    const std::vector<int> sets = sets_of(hosts, engine);
    const int own = sets[static_cast<std::size_t>(hosts.of(rank))];
    const auto members = static_cast<float>(hosts.ranks_of(hosts.of(rank)).size());
    for (const std::size_t length : {1, 100, 5000, 300'000}) {
      expect(sum(engine, 0, "", length) == static_cast<float>(hosts.size()), "the world's sum");
      const std::int64_t sent = metric(engine, "allreduce_messages_sent");
      if (hosts.ranks_of(hosts.of(rank)).front() == rank) expect(sent > 0, "messages");
      expect(sum(engine, own, "", length) == members, "the host's sum");
      if (members == 1) continue;
      expect(metric(engine, "allreduce_messages_sent") == sent, "the host's sends nothing");
    }
  });
}

TEST_CASE("within a host what repeats is replayed, whatever the rest of the world does") {
  const Hosts hosts = some_hosts();
  std::barrier together(hosts.size());
  run_on(hosts, [&](int rank, Runtime& engine) {
    const std::vector<int> sets = sets_of(hosts, engine);
    const int own = sets[static_cast<std::size_t>(hosts.of(rank))];
    const auto members = hosts.ranks_of(hosts.of(rank)).size();
    sum(engine, own, "x", 100);
    together.arrive_and_wait();
    const std::int64_t messages = metric(engine, "control_messages_sent");
    together.arrive_and_wait();
    for (int round = 0; round < 50; ++round) {
      expect(sum(engine, own, "x", 100) == static_cast<float>(members), "the host's sum");
    }
    together.arrive_and_wait();
    if (members > 1) {
      expect(metric(engine, "plans_replayed") == 50, "50 rounds");
      expect(metric(engine, "control_messages_sent") == messages, "no message");
    }
    together.arrive_and_wait();
    expect(sum(engine, 0, "x", 100) == static_cast<float>(hosts.size()), "the world's sum");
  });
}

TEST_CASE("a persistent operation of a host's own set stays in the host's memory") {
  const Hosts hosts{{0, 0, 1, 1}};
  std::barrier together(hosts.size());
  run_on(hosts, [&](int rank, Runtime& engine) {
    const std::vector<int> sets = sets_of(hosts, engine);
    const int own = sets[static_cast<std::size_t>(hosts.of(rank))];
    const std::shared_ptr<Runtime> runtime(std::shared_ptr<void>(), &engine);
    std::vector<float> tensor(20'000);
    const TensorView view{tensor.data(), {20'000}, DataType::float32};
    const auto run = PersistentAgreement(runtime, view, tensor.data(),
                                         {.name = "own", .op = ReduceOp::sum, .process_set = {own}})
                         .make_run();
    together.arrive_and_wait();
    const std::int64_t control = metric(engine, "control_messages_sent");
    const std::int64_t sent = metric(engine, "allreduce_messages_sent");
    // The hosts do not wait for each other.
    const int rounds = hosts.of(rank) == 0 ? 5 : 2;
    for (int round = 0; round < rounds; ++round) {
      std::fill(tensor.begin(), tensor.end(), static_cast<float>(1 + round));
      run->start(std::nullopt);
      run->wait();
      expect(tensor == std::vector<float>(tensor.size(), 2 * static_cast<float>(1 + round)),
             "the host's sum");
    }
    expect(metric(engine, "allreduce_batches") >= rounds, "it is counted");
    expect(metric(engine, "allreduce_messages_sent") == sent, "nothing is sent");
    expect(metric(engine, "control_messages_sent") == control, "nothing is negotiated");
    together.arrive_and_wait();
  });
}

TEST_CASE("a set of one rank of each host uses no host's memory") {
  const Hosts hosts{{0, 0, 1, 1}};
  run_on(hosts, [](int rank, Runtime& engine) {
    const int across = add_set(engine, {1, 2});
    if (rank == 0 || rank == 3) return;
    const std::int64_t replayed = metric(engine, "plans_replayed");
    for (int round = 0; round < 5; ++round) {
      expect(sum(engine, across, "across", 1000) == 2, "the sum across hosts");
    }
    expect(metric(engine, "plans_replayed") == replayed + 4, "all but the first");
    expect(metric(engine, "allreduce_messages_sent") > 0, "messages");
  });
}

namespace {

// Forwards to another transport.
class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(std::unique_ptr<Transport> link) : link_(std::move(link)) {}
  std::string_view name() const override { return link_->name(); }
  int rank() const override { return link_->rank(); }
  int size() const override { return link_->size(); }
  Ticket send(int peer, Tag tag, std::span<const ConstBytes> spans) override {
    return link_->send(peer, tag, spans);
  }
  Ticket recv(int peer, Tag tag, std::span<const MutableBytes> spans) override {
    return link_->recv(peer, tag, spans);
  }
  bool progress() override { return link_->progress(); }
  bool requires_polling() const override { return link_->requires_polling(); }
  int wait_fd() const override { return link_->wait_fd(); }
  bool arm() override { return link_->arm(); }
  void disarm() override { link_->disarm(); }
  void end_in_order() override { link_->end_in_order(); }
  void fail(int peer, const Status& why) override { link_->fail(peer, why); }
  void abort(const Status& reason) override { link_->abort(reason); }

 private:
  const std::unique_ptr<Transport> link_;
};

// Counts the sends to each rank.
class CountingTransport final : public ForwardingTransport {
 public:
  // `sent`: by rank; must outlive this.
  CountingTransport(std::unique_ptr<Transport> link, std::vector<std::atomic<int>>& sent)
      : ForwardingTransport(std::move(link)), sent_(sent) {}
  Ticket send(int peer, Tag tag, std::span<const ConstBytes> spans) override {
    ++sent_[static_cast<std::size_t>(peer)];
    return ForwardingTransport::send(peer, tag, spans);
  }

 private:
  std::vector<std::atomic<int>>& sent_;
};

// Asks to be looked at again a moment after each look.
class LookedAtTransport final : public ForwardingTransport {
 public:
  // `looks`: how often it has been looked at; must outlive this.
  LookedAtTransport(std::unique_ptr<Transport> link, std::atomic<int>& looks)
      : ForwardingTransport(std::move(link)), looks_(looks) {}
  bool progress() override {
    if (Clock::now() >= next_) {
      ++looks_;
      next_ = Clock::now() + std::chrono::milliseconds(1);
    }
    return ForwardingTransport::progress();
  }
  std::optional<Time> next_look() const override { return next_; }

 private:
  std::atomic<int>& looks_;
  Time next_ = Clock::now();
};

}  // namespace

TEST_CASE("messages are taken from the sender's memory on one host, and sent to others") {
  const Hosts hosts = some_hosts();
  const auto size = static_cast<std::size_t>(hosts.size());
  std::vector<std::vector<std::atomic<int>>> sent;  // by sender and receiver
  for (std::size_t rank = 0; rank < size; ++rank) sent.emplace_back(size);
  const auto count = [&](int rank, World& world) {
    world.transport = std::make_unique<CountingTransport>(std::move(world.transport),
                                                          sent[static_cast<std::size_t>(rank)]);
  };
  const auto body = [&](int rank, Runtime& engine) {
    constexpr std::size_t length = 100'000;
    std::vector<Handle> handles;
    std::vector<std::vector<float>> received(static_cast<std::size_t>(hosts.size()),
                                             std::vector<float>(length));
    std::vector<float> own(length, static_cast<float>(rank));
    for (int peer = 0; peer < hosts.size(); ++peer) {
      const auto message = [&](bool is_send, float* data) {
        MessageRequest request;
        request.is_send = is_send;
        request.peer = peer;
        request.count = static_cast<std::int64_t>(length);
        request.data = reinterpret_cast<std::byte*>(data);
        handles.push_back(engine.submit_message(std::move(request)));
      };
      message(true, own.data());
      message(false, received[static_cast<std::size_t>(peer)].data());
    }
    for (const Handle& handle : handles) finish(handle);
    for (int peer = 0; peer < hosts.size(); ++peer) {
      const auto& data = received[static_cast<std::size_t>(peer)];
      expect(data.front() == static_cast<float>(peer) && data.back() == data.front(),
             "what the peer has sent");
      const auto& memory = engine.epoch().layout().host.memory();
      const bool is_direct = memory && memory->has_direct_access();
      const bool crosses = hosts.of(peer) != hosts.of(rank);
      if (!crosses && !is_direct) continue;  // the kernel forbids direct access
      expect(sent[static_cast<std::size_t>(rank)][static_cast<std::size_t>(peer)] == crosses,
             str("messages from rank ", rank, " to rank ", peer));
    }
  };
  run_engines(hosts.size(), {}, body, nullptr, Sharing::memory, hosts.host_of,
              LossPolicy::end_world, count);
}

TEST_CASE("a transport is looked at when it asks for it, though nothing is in flight") {
  const Hosts hosts{{0, 1}};
  std::vector<std::atomic<int>> looks(2);
  const auto watch = [&](int rank, World& world) {
    world.transport = std::make_unique<LookedAtTransport>(std::move(world.transport),
                                                          looks[static_cast<std::size_t>(rank)]);
  };
  const auto body = [&](int rank, Runtime& engine) {
    expect(sum(engine, 0, "x", 1000) == 2, "the sum");
    const std::atomic<int>& own = looks[static_cast<std::size_t>(rank)];
    const int before = own;
    await([&] { return own >= before + 3; }, "an idle rank looks at its transport");
    expect(sum(engine, 0, "x", 1000) == 2, "the next sum");
  };
  run_engines(hosts.size(), {}, body, nullptr, Sharing::memory, hosts.host_of,
              LossPolicy::end_world, watch);
}

namespace {

// Throws at the next call once it is told to.
class ThrowingTransport final : public ForwardingTransport {
 public:
  // `throws` must outlive this.
  ThrowingTransport(std::unique_ptr<Transport> link, const std::atomic<bool>& throws)
      : ForwardingTransport(std::move(link)), throws_(throws) {}
  bool progress() override {
    if (throws_) throw std::runtime_error("a broken part");
    return ForwardingTransport::progress();
  }

 private:
  const std::atomic<bool>& throws_;
};

}  // namespace

TEST_CASE("an engine that fails completes its operations, and tells the others") {
  const Hosts hosts{{0, 1, 2}};
  std::array<std::atomic<bool>, 3> throws{};
  const auto break_one = [&](int rank, World& world) {
    world.transport = std::make_unique<ThrowingTransport>(std::move(world.transport),
                                                          throws[static_cast<std::size_t>(rank)]);
  };
  const auto body = [&](int rank, Runtime& engine) {
    expect(sum(engine, 0, "before", 1000) == 3, "the sum");
    if (rank == 1) throws[1] = true;
    std::vector<float> tensor(1000, 1);
    const Handle handle = submit(engine, allreduce_of(tensor, DataType::float32, "x"));
    await([&] { return handle.done(); }, "it is not left alone");
    if (rank == 1) {
      const std::string error = error_of<InternalError>(handle);
      expect(error.find("the coordinator of rank 1") != std::string::npos, error);
      expect(error.find("a broken part") != std::string::npos, error);
    } else {
      const std::string error = error_of<Error>(handle);
      expect(error.find("rank 1") != std::string::npos, error);
    }
  };
  run_engines(hosts.size(), {}, body, nullptr, Sharing::memory, hosts.host_of,
              LossPolicy::end_world, break_one);
}

TEST_CASE("what a host has no room for is an error of the set's members on all hosts") {
  const Hosts hosts{{0, 0, 1, 1}};
  run_on(hosts, [](int rank, Runtime& engine) {
    if (rank == 3) {
      try {
        for (std::uint64_t key = std::uint64_t{1} << 40;; ++key) {
          static_cast<void>(
              engine.epoch().layout().host.memory()->publish(key, std::size_t{1} << 20));
        }
      } catch (const std::bad_alloc&) {
      }
    }
    const auto error_of_set = [&](std::vector<int> ranks) -> std::string {
      try {
        add_set(engine, std::move(ranks));
      } catch (const UnsupportedError& error) {
        return error.what();
      }
      return "none";
    };
    const std::string error = error_of_set({2, 3});
    expect(error.find("rank 3 has no room") != std::string::npos, error);
    expect(error_of_set({0, 1}) == "none", "the other host has room");
    expect(error_of_set({1, 3}) == "none", "nothing is needed across hosts");
    expect(sum(engine, 0, "", 10) == 4, "the world goes on");
  });
}

}  // namespace rueda::test::several_hosts_test
