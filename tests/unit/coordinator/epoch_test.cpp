// Sets and messages of a world that continues without a rank.
#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <limits>

#include "coordinator/early_messages.h"
#include "plan/wire.h"
#include "ranks/engine_ranks.h"
#include "transport/control_socket.h"
#include "unit/contains.h"

namespace rueda::test::epoch_test {

namespace {

float sum(Runtime& runtime, int set, const std::string& name, std::size_t length = 1000) {
  std::vector<float> tensor(length, 1);
  finish(submit(runtime, allreduce_of(tensor, DataType::float32, name), set));
  return tensor.back();
}

Handle message(Runtime& runtime, bool is_send, int peer, std::vector<float>& data, int set = 0) {
  MessageRequest request;
  request.set_id = set;
  request.is_send = is_send;
  request.peer = peer;
  request.count = static_cast<std::int64_t>(data.size());
  request.data = reinterpret_cast<std::byte*>(data.data());
  return runtime.submit_message(std::move(request));
}

// Waits until the set is broken; returns the error text of a later submission to it.
std::string refusal(Runtime& runtime, int set) {
  await([&] { return runtime.is_broken(set); }, "the end of the set");
  std::vector<float> tensor(3);
  const Handle late = submit(runtime, allreduce_of(tensor, DataType::float32, "late"), set);
  return error_of<PeerLostError>(late);
}

// An arbitrary message in a set.
std::vector<std::byte> said_in(std::uint64_t set, std::size_t bytes = 1) {
  Writer writer;
  writer.byte(static_cast<std::uint8_t>(ControlMessage::negotiation));
  writer.unsigned_integer(set);
  for (std::size_t i = 0; i < bytes; ++i) writer.byte(0xff);
  return writer.take();
}

// An epoch that the test drives step by step.
class EpochByHand {
 public:
  explicit EpochByHand(World world)
      : epoch_(std::move(world), {options_, commands_, metrics_, timeline_, recorder_, long_waits_},
               LossPolicy::end_world) {
    expect_ok(epoch_.open(), "the world is there");
  }

  [[nodiscard]] Epoch& epoch() { return epoch_; }
  [[nodiscard]] std::int64_t dropped() const { return metrics_.control_messages_dropped.get(); }
  void push(Command::Kind kind, int set, std::vector<int> ranks = {}) {
    Command command;
    command.kind = kind;
    command.set_id = set;
    command.ranks = std::move(ranks);
    if (kind == Command::Kind::form) command.handle = std::make_shared<HandleState>();
    commands_.push(std::move(command));
  }
  void go_on_until(const std::function<bool()>& condition, const std::string& what) {
    await(
        [&] {
          epoch_.take_commands(Clock::now());
          epoch_.advance(Clock::now(), {true, true});
          return condition();
        },
        what);
  }
  void leave() {
    push(Command::Kind::leave, 0);
    go_on_until([&] { return epoch_.may_stop(Clock::now()); }, "the end of the world");
    epoch_.wind_up();
  }

 private:
  const Options options_;
  CommandQueue commands_;
  Metrics metrics_;
  Timeline timeline_;
  const LongWaits long_waits_;
  FlightRecorder recorder_;
  Epoch epoch_;
};

}  // namespace

TEST_CASE("a lost rank takes with it what it is part of, and nothing else") {
  constexpr int size = 4;
  constexpr int lost = 3;
  const bool replayed = GENERATE(false, true);
  InprocHub hub(size);
  std::barrier together(size);
  const auto body = [&](int rank, Runtime& runtime) {
    const int pair = add_set(runtime, {0, 1});
    const int other_pair = add_set(runtime, {2, lost});
    const int mine = rank < 2 ? pair : other_pair;
    for (int step = 0; step < (replayed ? 5 : 1); ++step) {
      expect(sum(runtime, mine, "step") == 2, "a sum of two ranks");
      expect(sum(runtime, 0, "world") == size, "a sum of all");
    }
    std::vector<float> data(100, 7);
    std::vector<float> large(1 << 20, 7);
    // In flight when the rank is lost: in its set, to and from it, and between others.
    std::vector<float> pending(1000, 1);
    const Handle waiting =
        rank == 2 ? submit(runtime, allreduce_of(pending, DataType::float32, "step"), mine)
                  : Handle{};
    const Handle from_lost = rank == 0 ? message(runtime, false, lost, data) : Handle{};
    const Handle to_lost = rank == 1 ? message(runtime, true, lost, large) : Handle{};
    together.arrive_and_wait();
    if (rank == lost) {
      hub.kill(lost, "killed by the test");
      return;
    }
    if (rank == 2) expect(contains(error_of<PeerLostError>(waiting), "rank 3"), "in its set");
    if (rank == 0) expect(contains(error_of<PeerLostError>(from_lost), "rank 3"), "from it");
    if (rank == 1) expect(contains(error_of<PeerLostError>(to_lost), "rank 3"), "to it");
    expect(contains(refusal(runtime, 0), "killed by the test"), "the world's set has ended");
    if (rank == 2) {
      expect(contains(refusal(runtime, other_pair), "rank 3"), "the set has ended");
      return;
    }
    for (int step = 0; step < 5; ++step) {
      expect(sum(runtime, pair, "step") == 2, "the others' set goes on");
      expect(sum(runtime, pair, "new") == 2, "also with what is new");
    }
  };
  run_engines(size, {}, body, &hub, Sharing::memory, {}, LossPolicy::keep_others);
}

TEST_CASE("a rank that aborts is lost, and the others' sets go on") {
  InprocHub hub(3);
  std::barrier together(3);
  const auto body = [&](int rank, Runtime& runtime) {
    const int pair = add_set(runtime, {0, 1});
    together.arrive_and_wait();  // all ranks know the set
    if (rank == 2) return runtime.abort("out of ideas");
    expect(contains(refusal(runtime, 0), "out of ideas"), "the others know why");
    for (int step = 0; step < 3; ++step) expect(sum(runtime, pair, "step") == 2, "they go on");
  };
  run_engines(3, {}, body, &hub, Sharing::memory, {}, LossPolicy::keep_others);
}

TEST_CASE("over the transport, too, sets without the lost rank go on") {
  InprocHub hub(3);
  std::barrier together(3);
  const auto body = [&](int rank, Runtime& runtime) {
    const int pair = add_set(runtime, {0, 1});
    expect(sum(runtime, 0, "world") == 3, "a sum of all");
    together.arrive_and_wait();
    if (rank == 2) return hub.kill(2, "killed by the test");
    expect(contains(refusal(runtime, 0), "killed by the test"), "the world's set has ended");
    expect(sum(runtime, pair, "pair") == 2, "nothing was on its way: the pair goes on");
  };
  run_engines(3, {}, body, &hub, Sharing::nothing, {}, LossPolicy::keep_others);
}

TEST_CASE("a first message to a rank that has left fails alone") {
  const std::vector<int> host_of{0, 0, 0};
  InprocHub hub(3);
  std::barrier together(3);
  run_ranks(3, [&](int rank) {
    World world = inproc_world(hub, rank);
    const auto bootstrap = hub.make_bootstrap(rank);
    auto lane = open_control_socket(*bootstrap, host_of, "", soon());
    expect_ok(lane.status(), "the control lane");
    expect_ok(world.control->close(soon()), "the end of the one that needs no connections");
    world.control = std::move(lane).value();
    auto started = Runtime::start(std::move(world), {});
    expect_ok(started.status(), "the world is there");
    Runtime& runtime = **started;
    const int pair = add_set(runtime, {0, 1});
    if (rank == 2) {
      runtime.shutdown();
      started->reset();
    }
    together.arrive_and_wait();
    if (rank == 1) {
      std::vector<float> large(5000, 1);
      expect(contains(error_of<ShutdownError>(message(runtime, true, 2, large)), "rank 2"), "who");
    }
    together.arrive_and_wait();
    if (rank == 2) return;
    for (int step = 0; step < 3; ++step) expect(sum(runtime, pair, "step") == 2, "they go on");
  });
}

TEST_CASE("what is sent to a group is refused by who ends it, also after the others have") {
  constexpr int group = first_formed;
  const std::vector<int> ranks{0, 1, 2};
  InprocHub hub(3);
  std::barrier together(3);
  std::atomic<bool> is_refused{false};
  run_ranks(3, [&](int rank) {
    if (rank == 1) {
      EpochByHand self(inproc_world(hub, rank));
      const auto find = [&] { return self.epoch().sets().find(group); };
      self.push(Command::Kind::form, group, ranks);
      self.go_on_until([&] { return find() != nullptr; }, "the group");
      together.arrive_and_wait();
      self.go_on_until([&] { return !find()->closing().ok(); }, "its end on another rank");
      // Like SetRequests::destroy(), which requests the rest while another thread makes progress.
      expect_ok(self.epoch().process_sets().remove(group), "its end here");
      self.go_on_until([&] { return find() == nullptr; }, "nothing is left of it");
      self.push(Command::Kind::destroy, group);
      self.go_on_until([&] { return is_refused.load(); }, "the refusal");
      return self.leave();
    }
    auto started = Runtime::start(inproc_world(hub, rank), {});
    expect_ok(started.status(), "the world is there");
    Runtime& runtime = **started;
    expect_ok(runtime.sets().form(group, ranks), "the group");
    std::vector<float> large(5000, 1);
    const Handle sent = rank == 2 ? message(runtime, true, 1, large, group) : Handle{};
    together.arrive_and_wait();
    if (rank == 0) return expect_ok(runtime.sets().destroy(group), "its end");
    expect(contains(error_of<ShutdownError>(sent), "rank 1"), "who has left");
    is_refused = true;
  });
}

TEST_CASE("what is said in sets that are none, or gone, is dropped and counted") {
  InprocHub hub(2);
  std::atomic<bool> done{false};
  run_ranks(2, [&](int rank) {
    World world = inproc_world(hub, rank);
    if (rank == 1) {
      ControlLane& lane = *world.control;
      lane.post(0, said_in(std::uint64_t{1} << 32));  // not the world's number
      lane.post(0, said_in(end_of_formed));
      lane.post(0, said_in(std::numeric_limits<std::uint64_t>::max()));
      // For one set more than are kept; then again for a kept set.
      for (std::size_t set = 0; set <= EarlyMessages::max_sets; ++set) {
        lane.post(0, said_in(first_formed + set));
      }
      lane.post(0, said_in(first_formed + 1));
      await([&] { return done.load(); }, "the other rank is done");
      return expect_ok(lane.close(soon()), "the end");
    }
    EpochByHand self(std::move(world));
    self.go_on_until([&] { return self.dropped() == 4; }, "what is dropped");
    // Only this rank is a member, so the messages kept for the set are from a non-member.
    self.push(Command::Kind::form, first_formed + 1, {0});
    self.go_on_until([&] { return self.epoch().sets().find(first_formed + 1) != nullptr; }, "set");
    expect(self.dropped() == 6, "nobody of the set has said it");
    expect(self.epoch().sets().find(first_formed + 1)->closing().ok(), "nor ended it");
    done = true;
    self.leave();
  });
}

TEST_CASE("a set ends for all where more has come for it than is kept") {
  constexpr int group = first_formed + 3;
  InprocHub hub(2);
  std::atomic<bool> done{false};
  run_ranks(2, [&](int rank) {
    World world = inproc_world(hub, rank);
    if (rank == 1) {
      constexpr std::size_t messages = 9;
      for (std::size_t i = 0; i < messages; ++i) {
        world.control->post(0, said_in(group, EarlyMessages::max_bytes / (messages - 1)));
      }
      await([&] { return done.load(); }, "the other rank is done");
      return expect_ok(world.control->close(soon()), "the end");
    }
    EpochByHand self(std::move(world));
    self.go_on_until([&] { return self.dropped() == 9; }, "all of it");
    self.push(Command::Kind::form, group, {0, 1});
    Status why;
    self.go_on_until(
        [&] {
          const SetCoordinator* const set = self.epoch().sets().find(group);
          if (set != nullptr) why = set->closing();
          return !why.ok();
        },
        "the end of the set");
    expect(why.code() == ErrorCode::internal && contains(why, "messages for process set"),
           why.message());
    expect(self.epoch().sets().find(0)->closing().ok(), "the world goes on");
    done = true;
    self.leave();
  });
}

}  // namespace rueda::test::epoch_test
