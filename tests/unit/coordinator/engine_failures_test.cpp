// Failures at a chosen moment: the messages that tell a rank what the others agreed on are dropped.
#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>

#include "ranks/engine_ranks.h"

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

}  // namespace rueda::test::engine_failures_test
