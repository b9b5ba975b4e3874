// Failures at a chosen moment: the messages that tell a rank what the others agreed on are dropped.
#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>

#include "ranks/engine_ranks.h"
#include "unit/captured_log.h"

namespace rueda::test::engine_failures_test {

namespace {

// A control lane that drops the messages of `source` while the gate is closed.
class GatedLane final : public ControlLane {
 public:
  GatedLane(std::unique_ptr<ControlLane> lane, int source, const std::atomic<bool>& closed)
      : lane_(std::move(lane)), source_(source), closed_(closed) {}

  std::string_view name() const override { return lane_->name(); }
  int rank() const override { return lane_->rank(); }
  int size() const override { return lane_->size(); }
  void on_message(MessageHandler handler) override {
    lane_->on_message([this, handle = std::move(handler)](int peer, ConstBytes message) {
      if (peer != source_ || !closed_) handle(peer, message);
    });
  }
  void on_loss(LossHandler handler) override { lane_->on_loss(std::move(handler)); }
  Status connect(std::span<const int> peers, Time deadline) override {
    return lane_->connect(peers, deadline);
  }
  void post(int peer, std::vector<std::byte> message) override {
    lane_->post(peer, std::move(message));
  }
  bool has_left(int peer) const override { return lane_->has_left(peer); }
  bool progress() override { return lane_->progress(); }
  int wait_fd() const override { return lane_->wait_fd(); }
  Status close(Time deadline) override { return lane_->close(deadline); }

 private:
  const std::unique_ptr<ControlLane> lane_;
  const int source_;
  const std::atomic<bool>& closed_;
};

}  // namespace

TEST_CASE("nobody waits for a rank that fails before it has heard that it is awaited") {
  constexpr int size = 3;
  InprocHub hub(size);
  const std::atomic<bool> gate_closed{true};
  std::barrier together(size);
  run_ranks(size, [&](int rank) {
    World world = inproc_world(hub, rank);
    auto formed = HostGroup::form(*hub.make_bootstrap(rank), world.topology.host_of, soon());
    formed.status().throw_if_error();
    world.host = std::move(formed).value();
    if (rank == 1) {
      world.control = std::make_unique<GatedLane>(std::move(world.control), 0, gate_closed);
    }
    auto started = Runtime::start(std::move(world), {});
    started.status().throw_if_error();
    Runtime& engine = **started;
    std::vector<float> tensor(100'000, 1);  // all ranks access it directly
    const Handle handle = submit(engine, allreduce_of(tensor, DataType::float32, "x"));
    const Time limit = soon();
    while (rank != 1 && engine.metrics().values().at("allreduce_batches") == 0 &&
           Clock::now() < limit) {
      std::this_thread::yield();
    }
    together.arrive_and_wait();  // the others execute it; rank 1 does not know
    if (rank == 1) engine.abort("gives up");
    const bool ends =
        handle.state()->wait(Clock::now() + std::chrono::seconds(5)) == FutexWake::changed;
    together.arrive_and_wait();  // rank 1's engine lives until here
    expect(ends, "an operation that ends although a rank will never come to it");
    const Status& status = handle.state()->status;
    expect(status.code() == ErrorCode::peer_lost && status.peer() == 1, "the reason");
    // The error names the operation, although rank 1 does not know that it was agreed on.
    expect(status.details().tensor == "x", "the tensor");
    expect(status.to_string().starts_with("the allreduce of 'x' cannot complete: "),
           status.to_string());
    engine.shutdown();
    expect(engine.epoch().sets().interrupted() == std::vector<std::string>{"allreduce of 'x'"},
           "what was open");
  });
}

// As above where the world goes on, so that it is the channels that say who will not come: ranks 0
// and 1 share a host, and rank 2, on another, is lost.
TEST_CASE("an operation over a lost host ends on ranks whose neighbour has not heard of it") {
  const CapturedLog log;
  constexpr int size = 3;
  InprocHub hub(size);
  std::atomic<bool> gate_closed{false};
  std::barrier together(size);
  std::barrier neighbours(size - 1);
  // Rank 2 sends from its one to the last.
  std::vector<std::vector<float>> tensors(size, std::vector<float>(100'000, 1));
  const auto prepare = [&](int rank, World& world) {
    if (rank != 1) return;
    world.control = std::make_unique<GatedLane>(std::move(world.control), 0, gate_closed);
  };
  const auto body = [&](int rank, Runtime& engine) {
    std::vector<float>& tensor = tensors[static_cast<std::size_t>(rank)];
    finish(submit(engine, allreduce_of(tensor, DataType::float32, "before")));
    together.arrive_and_wait();
    gate_closed = true;
    together.arrive_and_wait();
    const Handle handle = submit(engine, allreduce_of(tensor, DataType::float32, "x"));
    const Time limit = soon();
    while (rank == 0 && metric(engine, "allreduce_batches") < 2 && Clock::now() < limit) {
      std::this_thread::yield();
    }
    together.arrive_and_wait();  // rank 0 executes it and waits for rank 1, which does not know
    if (rank == 2) return hub.kill(2, "killed by the test");
    const bool ends = handle.state()->wait(soon()) == FutexWake::changed;
    neighbours.arrive_and_wait();  // rank 1's channels live until here
    expect(ends, "an operation that ends although a rank will never come to it");
    const Status& status = handle.state()->status;
    expect(status.code() == ErrorCode::peer_lost && status.peer() == 2, status.to_string());
  };
  Options options;
  options.shutdown_timeout =
      1;  // rank 2's engine does not know that it is dead, and waits for this
  run_engines(size, options, body, &hub, Sharing::memory, {0, 0, 1}, LossPolicy::keep_others,
              prepare);
  // If rank 1 did not say so, rank 0 would wait for it until a deadline, and report it.
  CHECK(log.lines("error", "has not stopped") == 0);
}

}  // namespace rueda::test::engine_failures_test
