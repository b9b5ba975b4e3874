// The trial of links between hosts.
#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "membership/host_links.h"
#include "membership/link_trial.h"
#include "ranks/rank_threads.h"
#include "transport/inproc.h"

namespace rueda::test::world_link_trial_test {

namespace {

// Accepts every transfer and completes none, like a link to a host that does not answer.
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
    const auto measured = measure_links(*bootstrap, "trial", *transport, host_of, soon(), soon());
    measured.status().throw_if_error();
    costs[static_cast<std::size_t>(rank)] = measured.value();
  });
  for (const LinkCosts& each : costs) {
    CHECK(each.is_measured);
    CHECK(each.latency > 0);
    CHECK(each.latency == costs.front().latency);
    CHECK(each.per_byte == costs.front().per_byte);
    CHECK(each.chunk == costs.front().chunk);
    CHECK(each.per_message == costs.front().per_message);
    CHECK(each.per_copied_byte > 0);
    CHECK(each.per_copied_byte == costs.front().per_copied_byte);
  }
}

TEST_CASE("on one host there is nothing to measure, and nobody waits") {
  InprocHub hub(2);
  const auto bootstrap = hub.make_bootstrap(0);
  const auto transport = hub.make_transport(0);
  const auto costs = measure_links(*bootstrap, "trial", *transport, {3, 3}, soon(), soon());
  REQUIRE(costs.ok());
  CHECK_FALSE(costs.value().is_measured);
}

TEST_CASE("a host that does not answer is an error at the deadline, on all ranks") {
  InprocHub hub(3);
  run_ranks(3, [&](int rank) {
    const auto bootstrap = hub.make_bootstrap(rank);
    SilentTransport transport(rank, 3);
    const Time deadline = Clock::now() + std::chrono::milliseconds(100);
    const auto costs = measure_links(*bootstrap, "trial", transport, {0, 1, 1}, deadline, soon());
    expect(costs.status().code() == ErrorCode::initialization, costs.status().to_string());
    expect(transport.aborted.ok() == (rank == 2), "the buffers are taken back");
  });
}

TEST_CASE("the second kind of link is left where it cannot be opened, or does not answer") {
  const bool opens = GENERATE(false, true);
  InprocHub hub(3);
  run_ranks(3, [&](int rank) {
    const auto bootstrap = hub.make_bootstrap(rank);
    const OpenLinks second = [&]() -> Expected<std::unique_ptr<Transport>> {
      if (opens) return std::unique_ptr<Transport>(std::make_unique<SilentTransport>(rank, 3));
      if (rank == 1) return Status(ErrorCode::transport, "no such network");
      return std::unique_ptr<Transport>(std::make_unique<SilentTransport>(rank, 3));
    };
    const auto links =
        choose_host_links(*bootstrap, hub.make_transport(rank), second, {0, 1, 1}, soon());
    links.status().throw_if_error();
    expect(links->transport->name() == "inproc" && links->costs.is_measured, "the first");
    expect(links->tried.size() == 2 && links->tried[0].transport == "inproc", "in that order");
    const std::string& obstacle = links->tried[1].obstacle;
    expect(obstacle.find(opens ? "did not answer" : "no such network") != std::string::npos,
           obstacle);
  });
}

TEST_CASE("all ranks take the same kind of link, and on one host none is tried") {
  const auto host_of = GENERATE(std::vector<int>{0, 1, 1}, std::vector<int>{2, 2, 2});
  const bool are_several = host_of[0] != host_of[1];
  InprocHub first(3);
  InprocHub second(3);
  std::vector<Transport*> opened(3);
  std::vector<char> took_second(3);
  std::vector<std::size_t> tried(3);
  run_ranks(3, [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    const auto bootstrap = first.make_bootstrap(rank);
    const OpenLinks open = [&]() -> Expected<std::unique_ptr<Transport>> {
      auto transport = second.make_transport(rank);
      opened[index] = transport.get();
      return transport;
    };
    const auto links =
        choose_host_links(*bootstrap, first.make_transport(rank), open, host_of, soon());
    links.status().throw_if_error();
    took_second[index] = links->transport.get() == opened[index];
    tried[index] = links->tried.size();
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CHECK(took_second[rank] == took_second[0]);
    CHECK(tried[rank] == (are_several ? 2 : 0));
    CHECK((opened[rank] != nullptr) == are_several);
  }
}

TEST_CASE("large messages decide which links are quicker, and small ones where these are alike") {
  const LinkCosts tcp{20'000, 8, true};
  const LinkCosts verbs{2'000, 0.3, true};
  const LinkCosts polled{5'000, 8, true};
  const LinkCosts agreeing{15'000, 12, true};
  CHECK_FALSE(is_quicker(tcp, verbs));
  CHECK(is_quicker(verbs, tcp));
  CHECK_FALSE(is_quicker(tcp, polled));  // similar for large messages, four times the latency
  CHECK(is_quicker(polled, tcp));
  CHECK(is_quicker(tcp, agreeing));
  CHECK_FALSE(is_quicker(agreeing, tcp));
  CHECK(is_quicker(tcp, tcp));  // a tie goes to the second kind, which needs no polling
}

}  // namespace rueda::test::world_link_trial_test
