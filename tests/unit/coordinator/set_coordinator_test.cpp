// A process set driven by the test: all members run in one thread, and the test chooses when each
// member steps and when messages are delivered.
#include "coordinator/set_coordinator.h"

#include <array>
#include <catch2/catch.hpp>
#include <deque>
#include <numeric>

#include "core/strings.h"
#include "ranks/engine_ranks.h"

namespace rueda::test::set_coordinator_test {

namespace {

using HandlePtr = std::shared_ptr<HandleState>;

class SetByHand {
 public:
  explicit SetByHand(int size, Sharing sharing = Sharing::nothing, const Options& options = {})
      : hub_(size), hosts_(static_cast<std::size_t>(size)) {
    if (sharing == Sharing::memory) {
      run_ranks(size, [&](int rank) {
        auto formed = HostMemory::form(*hub_.make_bootstrap(rank), soon());
        formed.status().throw_if_error();
        hosts_[static_cast<std::size_t>(rank)] = std::move(formed).value();
      });
    }
    std::vector<int> ranks(static_cast<std::size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    for (int rank = 0; rank < size; ++rank) {
      Member& member = members_.emplace_back();
      const std::shared_ptr<HostMemory>& host = hosts_[static_cast<std::size_t>(rank)];
      member.transport = hub_.make_transport(rank);
      member.backend = host ? make_onehost_backend(AlgorithmTable::of_limit(16 << 10), {}, 2)
                            : make_ring_backend(2);
      member.devices = make_device_backend(options, *member.backend);
      SetCoordinator::Events events;
      events.send = [this, rank](int peer, std::vector<std::byte> message) {
        messages_.push_back({rank, peer, std::move(message)});
      };
      events.apply_set_change = [](const Response&, const Submission&) {};
      events.awaited_here = [](const std::string&) {};
      events.failed = [this](const Response& response) {
        handed_to_.push_back(response.other_set);
      };
      events.joined = [] {};
      const ExecutionContext context{member.backend.get(), member.devices.get(),
                                     &member.metrics,      &member.timeline,
                                     &member.recorder,     HostMembers{host, ranks}};
      auto described = std::make_shared<ProcessSetMembers>(ProcessSetMembers{0, ranks, rank});
      member.set =
          std::make_unique<SetCoordinator>(std::move(described), parts_of(rank, ranks), nullptr,
                                           options, context, *member.transport, std::move(events));
    }
  }

  SetCoordinator& at(int rank) { return *members_[static_cast<std::size_t>(rank)].set; }
  [[nodiscard]] std::int64_t replayed(int rank) const {
    return members_[static_cast<std::size_t>(rank)].metrics.plans_replayed.get();
  }

  // Sums one number, 1 on each rank, into `result`.
  HandlePtr submit(int rank, const std::string& name, float& result) {
    result = 1;
    Submission submission;
    submission.request.name = name;
    submission.request.shape = {1};
    submission.output = reinterpret_cast<std::byte*>(&result);
    submission.input = submission.output;
    submission.handle = std::make_shared<HandleState>();
    HandlePtr handle = submission.handle.state();
    std::vector<Submission> one;
    one.push_back(std::move(submission));
    at(rank).submit(std::move(one), now());
    return handle;
  }
  HandlePtr submit(int rank, const std::string& name) { return submit(rank, name, ignored_); }

  void step(int rank) {
    (void)members_[static_cast<std::size_t>(rank)].transport->progress();
    (void)at(rank).step(now());
  }
  void deliver() {
    for (Message& message : std::exchange(messages_, {})) {
      at(message.to).receive(message.from, message.bytes, now());
    }
  }
  // For each failure: the set to which the refusing rank had submitted the name instead, or -1.
  [[nodiscard]] const std::vector<int>& handed_to() const { return handed_to_; }
  // Runs until nothing changes.
  void settle() {
    for (int round = 0; round < 50; ++round) {
      for (int rank = 0; rank < hub_.size(); ++rank) step(rank);
      deliver();
    }
  }

 private:
  struct Member {
    Metrics metrics;
    Timeline timeline;
    FlightRecorder recorder;
    std::unique_ptr<Transport> transport;
    std::unique_ptr<Backend> backend;
    std::unique_ptr<DeviceBackend> devices;
    std::unique_ptr<SetCoordinator> set;
  };
  struct Message {
    int from;
    int to;
    std::vector<std::byte> bytes;
  };

  static Time now() { return Clock::now(); }
  // All ranks share memory, or none.
  [[nodiscard]] HostParts parts_of(int rank, const std::vector<int>& ranks) const {
    const std::shared_ptr<HostMemory>& host = hosts_[static_cast<std::size_t>(rank)];
    return host ? HostParts{{host, ranks}, rank, 0, {0}} : HostParts{{}, 0, rank, ranks};
  }

  InprocHub hub_;
  std::vector<std::shared_ptr<HostMemory>> hosts_;
  std::deque<Member> members_;
  std::deque<Message> messages_;
  std::vector<int> handed_to_;
  float ignored_ = 0;
};

ErrorCode outcome(const HandlePtr& handle) {
  REQUIRE(handle->is_done());
  return handle->status.code();
}

Status elsewhere() {
  return {ErrorCode::mismatch, "submitted to another set"};
}

}  // namespace

TEST_CASE("what is submitted under a name that this rank refuses comes after the refusal") {
  SetByHand set(2);
  set.at(0).submit(refusal_of("x", elsewhere(), 1), Clock::now());
  float first = 0;
  float second = 0;
  const HandlePtr deferred = set.submit(0, "x", first);
  const HandlePtr refused = set.submit(1, "x");
  set.settle();
  CHECK(outcome(refused) == ErrorCode::mismatch);
  CHECK(set.handed_to() == std::vector<int>{1});
  CHECK_FALSE(deferred->is_done());
  const HandlePtr other = set.submit(1, "x", second);
  set.settle();
  CHECK(outcome(deferred) == ErrorCode::ok);
  CHECK(outcome(other) == ErrorCode::ok);
  CHECK((first == 2 && second == 2));
}

TEST_CASE("what waits behind a refusal fails when a rank leaves") {
  SetByHand set(2);
  set.at(0).submit(refusal_of("x", elsewhere(), 1), Clock::now());
  const HandlePtr deferred = set.submit(0, "x");
  set.at(1).leave();
  set.settle();
  CHECK(outcome(deferred) == ErrorCode::shutdown);
}

TEST_CASE("what waits for its number is done before its rank leaves") {
  const Sharing sharing = GENERATE(Sharing::nothing, Sharing::memory);
  SetByHand set(2, sharing);
  const std::string number = str(numbered_prefix, 0);
  for (int rank : {0, 1}) (void)set.submit(rank, number);
  set.settle();  // can be replayed from now on
  std::array<float, 6> sums{};
  std::vector<HandlePtr> handles;
  for (int rank : {0, 1}) {
    for (int i = 0; i < 3; ++i) {
      float& sum = sums[static_cast<std::size_t>(3 * rank + i)];
      handles.push_back(set.submit(rank, number, sum));
    }
    if (rank == 0) set.at(0).leave();
    set.settle();
  }
  for (const HandlePtr& handle : handles) CHECK(outcome(handle) == ErrorCode::ok);
  for (const float sum : sums) CHECK(sum == 2);
  const HandlePtr late = set.submit(1, "x");
  set.settle();
  CHECK(outcome(late) == ErrorCode::shutdown);
}

TEST_CASE("what is matched by order waits for its name, and its caller does not") {
  SetByHand set(2);
  const std::string name = str(ordered_prefix, "0.0.1.0");
  std::array<float, 6> sums{};
  std::vector<HandlePtr> handles;
  for (int rank : {0, 1}) {
    for (int i = 0; i < 3; ++i) {
      handles.push_back(set.submit(rank, name, sums[static_cast<std::size_t>(3 * rank + i)]));
    }
    set.settle();
  }
  for (const HandlePtr& handle : handles) CHECK(outcome(handle) == ErrorCode::ok);
  for (const float sum : sums) CHECK(sum == 2);
}

TEST_CASE("what waits for its number ends when another rank leaves") {
  SetByHand set(2);
  std::vector<HandlePtr> handles;
  for (int i = 0; i < 2; ++i) handles.push_back(set.submit(0, str(numbered_prefix, 0)));
  set.at(0).leave();
  set.settle();
  CHECK_FALSE(handles[0]->is_done());
  set.at(1).leave();
  set.settle();
  for (const HandlePtr& handle : handles) CHECK(outcome(handle) == ErrorCode::shutdown);
}

TEST_CASE("a duplicate that comes after all have agreed fails the next operation of the name") {
  SetByHand set(2);
  const HandlePtr first = set.submit(0, "x");
  const HandlePtr second = set.submit(1, "x");
  set.step(1);
  set.deliver();
  set.step(0);  // rank 0 decides; rank 1 does not know yet
  const HandlePtr duplicate = set.submit(1, "x");
  CHECK(outcome(duplicate) == ErrorCode::duplicate_name);
  set.settle();
  CHECK(outcome(first) == ErrorCode::ok);
  CHECK(outcome(second) == ErrorCode::ok);
  const HandlePtr next = set.submit(0, "x");  // rank 1 will not submit it
  set.settle();
  CHECK(outcome(next) == ErrorCode::duplicate_name);
  CHECK(next->status.to_string().find("rank 1") != std::string::npos);
  CHECK(set.handed_to() == std::vector<int>{-1});  // not submitted to another set
}

TEST_CASE("so does a duplicate of what all have agreed to replay") {
  SetByHand set(2, Sharing::memory);
  for (int rank : {0, 1}) (void)set.submit(rank, "x");
  set.settle();
  const HandlePtr second = set.submit(1, "x");
  const HandlePtr first = set.submit(0, "x");  // the last to join; rank 1 has not stepped yet
  const HandlePtr duplicate = set.submit(1, "x");
  CHECK(outcome(duplicate) == ErrorCode::duplicate_name);
  set.settle();
  CHECK(outcome(first) == ErrorCode::ok);
  CHECK(outcome(second) == ErrorCode::ok);
  CHECK((set.replayed(0) == 1 && set.replayed(1) == 1));
  const HandlePtr next = set.submit(0, "x");
  set.settle();
  CHECK(outcome(next) == ErrorCode::duplicate_name);
}

TEST_CASE("a duplicate that comes in time fails the operation on all ranks, and is forgotten") {
  const Sharing sharing = GENERATE(Sharing::nothing, Sharing::memory);
  SetByHand set(2, sharing);
  for (int rank : {0, 1}) (void)set.submit(rank, "x");
  set.settle();
  const HandlePtr pending = set.submit(1, "x");
  set.settle();
  const HandlePtr duplicate = set.submit(1, "x");
  set.settle();
  CHECK(outcome(duplicate) == ErrorCode::duplicate_name);
  CHECK_FALSE(pending->is_done());
  const HandlePtr other = set.submit(0, "x");
  set.settle();
  CHECK(outcome(pending) == ErrorCode::duplicate_name);
  CHECK(outcome(other) == ErrorCode::duplicate_name);
  float first = 0;
  float second = 0;
  const HandlePtr again = set.submit(0, "x", first);
  const HandlePtr and_again = set.submit(1, "x", second);
  set.settle();
  CHECK(outcome(again) == ErrorCode::ok);
  CHECK(outcome(and_again) == ErrorCode::ok);
  CHECK((first == 2 && second == 2));
}

TEST_CASE("a rank that joins is told when the others leave, and when they had left before") {
  SetByHand set(2);
  const auto joining = std::make_shared<HandleState>();
  set.at(0).join(joining);
  set.settle();
  CHECK_FALSE(joining->is_done());
  const auto twice = std::make_shared<HandleState>();
  set.at(0).join(twice);
  CHECK(outcome(twice) == ErrorCode::invalid_argument);
  set.at(1).leave();
  set.settle();
  CHECK(outcome(joining) == ErrorCode::shutdown);
  const auto late = std::make_shared<HandleState>();
  set.at(0).join(late);
  CHECK(outcome(late) == ErrorCode::shutdown);
}

}  // namespace rueda::test::set_coordinator_test
