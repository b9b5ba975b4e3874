// The trial of the links between hosts.
#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "membership/link_trial.h"
#include "rank_threads.h"
#include "transport/inproc.h"

namespace rueda::test::world_link_trial_test {

namespace {

// Takes everything and completes nothing, as a link to a host that does not answer.
class SilentTransport final : public Transport {
 public:
  SilentTransport(int rank, int size) : rank_(rank), size_(size) {}
  std::string_view name() const override { return "silent"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Ticket send(int peer, Tag, std::span<const ConstBytes>) override { return open(peer); }
  Ticket recv(int peer, Tag, std::span<const MutableBytes>) override { return open(peer); }
  bool progress() override { return false; }
  bool arm() override { return false; }
  void disarm() override {}
  void fail(int, const Status&) override {}
  void abort(const Status& reason) override { aborted = reason; }

  Status aborted;

 private:
  static Ticket open(int peer) {
    auto ticket = std::make_shared<Transfer>();
    ticket->peer = peer;
    return ticket;
  }
  const int rank_;
  const int size_;
};

}  // namespace

TEST_CASE("all ranks get the figures of the slowest link") {
  const auto host_of = GENERATE(std::vector<int>{0, 1}, std::vector<int>{1, 0, 0, 1},
                                std::vector<int>{0, 1, 2, 2, 1});
  const auto size = static_cast<int>(host_of.size());
  InprocHub hub(size);
  std::vector<LinkCosts> costs(host_of.size());
  run_ranks(size, [&](int rank) {
    const auto bootstrap = hub.make_bootstrap(rank);
    const auto transport = hub.make_transport(rank);
    const auto measured = measure_links(*bootstrap, *transport, host_of, soon());
    measured.status().throw_if_error();
    costs[static_cast<std::size_t>(rank)] = measured.value();
  });
  for (const LinkCosts& each : costs) {
    CHECK(each.is_measured);
    CHECK(each.latency > 0);
    CHECK(each.latency == costs.front().latency);
    CHECK(each.per_byte == costs.front().per_byte);
    CHECK(each.chunk == costs.front().chunk);
  }
}

TEST_CASE("on one host there is nothing to measure, and nobody waits") {
  InprocHub hub(2);
  const auto bootstrap = hub.make_bootstrap(0);
  const auto transport = hub.make_transport(0);
  const auto costs = measure_links(*bootstrap, *transport, {3, 3}, soon());
  REQUIRE(costs.ok());
  CHECK_FALSE(costs.value().is_measured);
}

TEST_CASE("a host that does not answer is an error at the deadline, on all ranks") {
  InprocHub hub(3);
  run_ranks(3, [&](int rank) {
    const auto bootstrap = hub.make_bootstrap(rank);
    SilentTransport transport(rank, 3);
    const Time deadline = Clock::now() + std::chrono::milliseconds(100);
    const auto costs = measure_links(*bootstrap, transport, {0, 1, 1}, deadline);
    expect(costs.status().code() == ErrorCode::initialization, costs.status().to_string());
    expect(transport.aborted.ok() == (rank == 2), "the buffers are taken back");
  });
}

}  // namespace rueda::test::world_link_trial_test
