// Messages between two ranks, sets that only their members know, and queues of completions, on
// ranks that are threads.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "coordinator/completion_queue.h"
#include "effort.h"
#include "plan/wire.h"
#include "ranks/engine_ranks.h"

namespace rueda::test::messages_test {

namespace {

using namespace std::chrono_literals;

MessageRequest message(bool is_send, int peer, std::int64_t tag, std::vector<float>& data,
                       int set = 0) {
  MessageRequest request;
  request.is_send = is_send;
  request.set_id = set;
  request.peer = peer;
  request.tag = tag;
  request.count = static_cast<std::int64_t>(data.size());
  request.data = reinterpret_cast<std::byte*>(data.data());
  return request;
}

Handle send(Runtime& engine, int target, std::vector<float>& data, std::int64_t tag = 0,
            int set = 0) {
  return engine.submit_message(message(true, target, tag, data, set));
}

Handle recv(Runtime& engine, int source, std::vector<float>& data, std::int64_t tag = 0,
            int set = 0) {
  return engine.submit_message(message(false, source, tag, data, set));
}

std::vector<float> numbers(std::size_t count, float first) {
  std::vector<float> data(count);
  std::iota(data.begin(), data.end(), first);
  return data;
}

// Requires that `action` throws the error; Catch's assertions are for one thread only.
template <class Error>
void fails(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error&) {
    return;
  }
  expect(false, "an error");
}

const Sharing sharings[] = {Sharing::nothing, Sharing::memory};

// Ranks that only exchange messages, in one thread: each is driven, and each message delivered,
// when the test says so.
class MessagesByHand {
 public:
  explicit MessagesByHand(int size) : hub_(size) {
    for (int rank = 0; rank < size; ++rank) {
      Rank& added = ranks_.emplace_back();
      added.transport = hub_.make_transport(rank);
      added.control = hub_.make_control_lane(rank);
      added.departures = std::make_unique<Departures>(*added.control);
      added.messages = std::make_unique<PointToPoint>(
          alone_, *added.transport, *added.departures,
          [this, rank](int peer, std::span<const std::byte> posted) {
            posted_.push_back({rank, peer, {posted.begin(), posted.end()}});
          },
          [this](int set) { return removed_.contains(set); });
    }
  }
  ~MessagesByHand() {
    for (Rank& rank : ranks_) (void)rank.control->close(Clock::now());
  }

  PointToPoint& at(int rank) { return *ranks_[static_cast<std::size_t>(rank)].messages; }
  std::shared_ptr<HandleState> submit(int rank, MessageRequest request) {
    const auto handle = std::make_shared<HandleState>();
    request.handle = handle;
    at(rank).submit(std::move(request));
    return handle;
  }
  // Removes the set on all ranks; its number is not used again.
  void remove(int set) {
    removed_.insert(set);
    for (Rank& rank : ranks_) rank.messages->remove(set);
  }
  void good_bye(int rank) {
    (void)ranks_[static_cast<std::size_t>(rank)].control->close(Clock::now());
  }
  void settle(Time now = {}) {
    for (int round = 0; round < 20; ++round) {
      for (Posted& posted : std::exchange(posted_, {})) {
        at(posted.to).receive(posted.from, posted.message);
      }
      for (Rank& rank : ranks_) {
        rank.control->progress();
        rank.transport->progress();
        rank.messages->step(now);
      }
    }
  }

 private:
  struct Rank {
    std::unique_ptr<Transport> transport;
    std::unique_ptr<ControlLane> control;
    std::unique_ptr<Departures> departures;
    std::unique_ptr<PointToPoint> messages;
  };
  struct Posted {
    int from;
    int to;
    std::vector<std::byte> message;
  };
  const HostGroup alone_;  // shares no memory
  InprocHub hub_;
  std::deque<Rank> ranks_;
  std::deque<Posted> posted_;
  std::set<int> removed_;
};

ErrorCode outcome(const std::shared_ptr<HandleState>& handle) {
  REQUIRE(handle->is_done());
  return handle->status.code();
}

}  // namespace

TEST_CASE("messages arrive by tag, in their order, whoever comes first") {
  const Sharing sharing = GENERATE(from_range(std::begin(sharings), std::end(sharings)));
  // Small messages travel with their offer; large ones are read directly or sent.
  const std::size_t count = GENERATE(0, 1, 1000, effort(3'000'000, 1'100'000));
  run_engines(
      2, {},
      [&](int rank, Runtime& engine) {
        const int peer = 1 - rank;
        auto first = numbers(count, 1 + static_cast<float>(rank));
        auto second = numbers(count, 10 + static_cast<float>(rank));
        auto other = numbers(count, 20 + static_cast<float>(rank));
        std::vector<float> into_first(count), into_second(count), into_other(count);
        std::vector<Handle> handles;
        // Both send before they receive, and receive the tags in a different order.
        handles.push_back(send(engine, peer, first, 5));
        handles.push_back(send(engine, peer, second, 5));
        handles.push_back(send(engine, peer, other, -7));
        handles.push_back(recv(engine, peer, into_other, -7));
        handles.push_back(recv(engine, peer, into_first, 5));
        handles.push_back(recv(engine, peer, into_second, 5));
        for (const Handle& handle : handles) finish(handle);
        expect(into_first == numbers(count, 1 + static_cast<float>(peer)), "the first message");
        expect(into_second == numbers(count, 10 + static_cast<float>(peer)), "the second message");
        expect(into_other == numbers(count, 20 + static_cast<float>(peer)), "the other tag");
        expect(handles.back().state()->output.source == peer, "the source");
      },
      nullptr, sharing);
}

TEST_CASE("a message from any source tells from whom") {
  const Sharing sharing = GENERATE(from_range(std::begin(sharings), std::end(sharings)));
  run_engines(
      4, {},
      [&](int rank, Runtime& engine) {
        if (rank != 0) {
          auto data = numbers(5000, static_cast<float>(rank));
          finish(send(engine, 0, data));
          return;
        }
        std::vector<bool> seen(4);
        for (int i = 0; i < 3; ++i) {
          std::vector<float> data(5000);
          const Handle handle = recv(engine, any_source, data);
          finish(handle);
          const int source = handle.state()->output.source;
          expect(data == numbers(5000, static_cast<float>(source)), "the source's message");
          expect(!seen[static_cast<std::size_t>(source)], "one message of each");
          seen[static_cast<std::size_t>(source)] = true;
        }
      },
      nullptr, sharing);
}

TEST_CASE("a rank can send to itself") {
  run_engines(
      1, {},
      [](int, Runtime& engine) {
        auto data = numbers(100'000, 3);
        std::vector<float> into(100'000);
        const Handle sent = send(engine, 0, data);
        finish(recv(engine, 0, into));
        finish(sent);
        expect(into == data, "the message");
      },
      nullptr, Sharing::memory);
}

TEST_CASE("messages that do not fit fail on both sides, and others go on") {
  const Sharing sharing = GENERATE(from_range(std::begin(sharings), std::end(sharings)));
  run_engines(
      2, {},
      [&](int rank, Runtime& engine) {
        std::vector<float> sent(3000, 1), expected(2000, 0);
        const Handle handle = rank == 0 ? send(engine, 1, sent) : recv(engine, 0, expected);
        try {
          finish(handle);
          expect(false, "an error");
        } catch (const MismatchError& error) {
          const std::string text = error.what();
          expect(text.find("rank 0 sends 3000 x float32") != std::string::npos, text);
          expect(text.find("rank 1 receives 2000 x float32") != std::string::npos, text);
          expect(error.details().field == "number of elements", error.details().field);
          expect(error.details().values == std::vector<std::string>{"3000", "2000"},
                 "both numbers");
        }
        std::vector<float> fitting(3000, static_cast<float>(rank));
        finish(rank == 0 ? recv(engine, 1, fitting) : send(engine, 0, fitting));
        expect(fitting[2999] == 1, "the next message");
      },
      nullptr, sharing);
}

TEST_CASE("messages to or from nobody are refused") {
  run_engines(2, {}, [](int, Runtime& engine) {
    std::vector<float> data(1);
    fails<InvalidArgumentError>([&] { finish(send(engine, 7, data)); });
    fails<InvalidArgumentError>([&] { finish(recv(engine, 2, data)); });
    fails<InvalidArgumentError>([&] { finish(recv(engine, 0, data, 0, 99)); });
  });
}

TEST_CASE("messages whose other side has left fail, those sent before arrive") {
  run_engines(3, {}, [](int rank, Runtime& engine) {
    std::vector<float> small(10, 5), large(5000, 5);
    if (rank == 2) {
      finish(send(engine, 1, small, 1));
      engine.shutdown();
      return;
    }
    if (rank == 0) return;
    std::this_thread::sleep_for(50ms);
    std::vector<float> into(10);
    const Handle lost = recv(engine, 2, large, 2);
    finish(recv(engine, 2, into, 1));
    expect(into[9] == 5, "what was sent before");
    fails<ShutdownError>([&] { finish(lost); });
  });
}

TEST_CASE("what its sender offered and left with is not waited for") {
  const Sharing sharing = GENERATE(from_range(std::begin(sharings), std::end(sharings)));
  std::barrier together(2);
  run_engines(
      2, {},
      [&](int rank, Runtime& engine) {
        std::vector<float> large(5000, 5);
        if (rank == 0) {
          const Handle sent = send(engine, 1, large);
          engine.shutdown();
          together.arrive_and_wait();
          return fails<ShutdownError>([&] { finish(sent); });
        }
        together.arrive_and_wait();
        fails<ShutdownError>([&] { finish(recv(engine, 0, large)); });
      },
      nullptr, sharing);
}

TEST_CASE("a sender that leaves before it hears that its message is wanted takes it back") {
  MessagesByHand ranks(2);
  std::vector<float> large(5000, 5), into(large.size());
  const auto sent = ranks.submit(0, message(true, 1, 0, large));
  ranks.settle();
  const auto received = ranks.submit(1, message(false, 0, 0, into));  // requests the message
  ranks.at(0).withdraw_all();
  ranks.at(0).fail_all(Status(ErrorCode::shutdown, "left"));
  ranks.settle();
  CHECK(outcome(sent) == ErrorCode::shutdown);
  CHECK(outcome(received) == ErrorCode::shutdown);
  CHECK(received->status.peer() == 0);
}

TEST_CASE("how a message fails that is being taken tells how its sender's world has ended") {
  const auto [end, code] = GENERATE(std::pair(world_is_left, ErrorCode::shutdown),
                                    std::pair(world_is_broken, ErrorCode::peer_lost));
  InprocHub hub(2);
  std::barrier together(2);
  std::vector<std::byte> offer;
  run_ranks(2, [&, ends = end, expected = code](int rank) {
    const auto bootstrap = hub.make_bootstrap(rank);
    const std::vector<int> host_of{0, 0};
    auto formed = HostGroup::form(*bootstrap, host_of, soon());
    expect_ok(formed.status(), "the host group");
    const HostGroup host = std::move(formed).value();
    const auto transport = hub.make_transport(rank);
    const auto control = hub.make_control_lane(rank);
    const Departures departures(*control);
    PointToPoint messages(host, *transport, departures,
                          [&](int, std::span<const std::byte> posted) {
                            if (rank == 0) offer.assign(posted.begin(), posted.end());
                          });
    std::vector<float> data(3 << 20, static_cast<float>(rank));  // takes more than one step
    const auto handle = std::make_shared<HandleState>();
    MessageRequest request = message(rank == 0, 1 - rank, 0, data);
    request.handle = handle;
    messages.submit(std::move(request));
    together.arrive_and_wait();
    if (rank == 1) {
      messages.receive(0, offer);
      messages.step(Clock::now());
      expect(!handle->is_done(), "a message that is being taken");
    }
    together.arrive_and_wait();
    if (rank == 0) host.memory()->header(0).world_end = ends;
    together.arrive_and_wait();
    if (rank == 1) {
      messages.step(Clock::now());
      expect(handle->is_done() && handle->status.code() == expected, "how it has failed");
    }
    together.arrive_and_wait();
    messages.fail_all(Status(ErrorCode::shutdown, "the end of the test"));
    expect_ok(control->close(Clock::now()), "the end of the lane");
  });
}

TEST_CASE("messages between others go on when a rank has left") {
  const Sharing sharing = GENERATE(from_range(std::begin(sharings), std::end(sharings)));
  run_engines(
      3, {},
      [&](int rank, Runtime& engine) {
        if (rank == 0) return engine.shutdown();
        std::this_thread::sleep_for(20ms);
        for (int round = 0; round < 10; ++round) {
          auto data = numbers(20'000, 1);
          if (rank == 2) data.assign(data.size(), 0);
          finish(rank == 1 ? send(engine, 2, data) : recv(engine, 1, data));
          expect(data == numbers(20'000, 1), "the message");
        }
      },
      nullptr, sharing);
}

TEST_CASE("a message matches by set, tag and sender, the oldest first") {
  struct Side {
    MessageRequest request;
    std::shared_ptr<HandleState> handle;
    std::unique_ptr<std::vector<float>> data;
  };
  for (unsigned seed = 0; seed < effort(40U, 15U); ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    MessagesByHand ranks(3);
    std::vector<Side> sends;
    std::vector<Side> receives;  // posted by rank 0
    const auto submit = [&](bool is_send) {
      auto& sides = is_send ? sends : receives;
      const bool large = random() % 4 == 0;
      auto data = std::make_unique<std::vector<float>>(large ? 2000 : 10, -1.0F);
      // A send's data is its number among all sends.
      if (is_send) std::fill(data->begin(), data->end(), static_cast<float>(sends.size()));
      const int sender = 1 + static_cast<int>(random() % 2);
      const int source = random() % 3 == 0 ? any_source : sender;
      // Each tag has one length, so that all matching messages fit.
      const std::int64_t tag = (large ? 10 : 0) + static_cast<std::int64_t>(random() % 2);
      const int set = static_cast<int>(random() % 2);
      const MessageRequest request = message(is_send, is_send ? 0 : source, tag, *data, set);
      sides.push_back({request, ranks.submit(is_send ? sender : 0, request), std::move(data)});
      sides.back().request.peer = is_send ? sender : source;
    };
    for (int step = 0; step < 60; ++step) {
      submit(random() % 2 == 0);
      if (random() % 3 != 0) ranks.settle();
    }
    ranks.settle();
    const auto fit = [](const Side& send, const Side& receive) {
      return send.request.set_id == receive.request.set_id &&
             send.request.tag == receive.request.tag &&
             (receive.request.peer == any_source || receive.request.peer == send.request.peer);
    };
    std::vector<bool> taken(sends.size());
    for (const Side& receive : receives) {
      if (!receive.handle->is_done()) continue;
      REQUIRE(receive.handle->status.ok());
      const auto number = static_cast<std::size_t>(receive.data->front());
      REQUIRE(receive.data->back() == receive.data->front());
      REQUIRE(fit(sends[number], receive));
      REQUIRE(receive.handle->output.source == sends[number].request.peer);
      REQUIRE(!taken[number]);
      taken[number] = true;
    }
    for (std::size_t late = 0; late < sends.size(); ++late) {
      const Side& send = sends[late];
      const bool is_inline = send.request.bytes() <= PointToPoint::inline_bytes;
      REQUIRE(send.handle->is_done() == (is_inline || taken[late]));
      for (const Side& receive : receives) {
        REQUIRE((taken[late] || receive.handle->is_done() || !fit(send, receive)));
      }
      for (std::size_t early = 0; early < late && taken[late]; ++early) {
        const MessageRequest& other = sends[early].request;
        const bool same = other.peer == send.request.peer && other.tag == send.request.tag &&
                          other.set_id == send.request.set_id;
        REQUIRE((taken[early] || !same));
      }
    }
  }
}

TEST_CASE("a message for a set whose number none can have is for no other set") {
  const bool can_be = GENERATE(true, false);
  MessagesByHand ranks(2);
  std::vector<float> data(1, -1.0F);
  const MessageRequest request = message(false, 1, 5, data, 0);
  Writer offer;
  offer.byte(0);
  offer.unsigned_integer(0);
  offer.unsigned_integer(can_be ? 0 : std::uint64_t{1} << 32);
  offer.integer(5);
  offer.byte(static_cast<std::uint8_t>(request.dtype));
  offer.unsigned_integer(1);
  offer.unsigned_integer(0);
  offer.byte(1);
  std::vector<std::byte> bytes = offer.take();
  bytes.resize(bytes.size() + sizeof(float));
  ranks.at(0).receive(1, bytes);
  const auto handle = ranks.submit(0, request);
  ranks.settle();
  CHECK(handle->is_done() == can_be);
  CHECK(data.front() == (can_be ? 0.0F : -1.0F));
  ranks.remove(0);  // ends the receive
}

TEST_CASE("a peer that returns more room than it had gets no more than all of it") {
  InlineWindow window([](int, std::size_t) { FAIL("nothing was taken"); });
  const std::size_t length = InlineWindow::bytes - InlineWindow::offer_bytes;
  CHECK(window.reserve(1, length));
  window.returned(1, 2 * InlineWindow::bytes);
  CHECK(window.reserve(1, length));
  CHECK_FALSE(window.reserve(1, 0));
}

TEST_CASE("small messages that nobody receives are kept up to a window, then their sends wait") {
  MessagesByHand ranks(3);
  const std::size_t count = GENERATE(0, 1, PointToPoint::inline_bytes / sizeof(float));
  const std::size_t room = count * sizeof(float) + InlineWindow::offer_bytes;
  const std::size_t fitting = InlineWindow::bytes / room;
  std::vector<std::vector<float>> sent, received;
  std::vector<std::shared_ptr<HandleState>> sends, receives;
  for (std::size_t i = 0; i < fitting + 5; ++i) {
    sent.emplace_back(count, static_cast<float>(i));
    received.emplace_back(count, -1.0F);
  }
  for (auto& data : sent) sends.push_back(ranks.submit(0, message(true, 1, 0, data)));
  ranks.settle();
  const auto is_done = [](const auto& handle) { return handle->is_done(); };
  CHECK(std::count_if(sends.begin(), sends.end(), is_done) == static_cast<long>(fitting));
  // Each sender has one window per receiver.
  CHECK(ranks.submit(0, message(true, 2, 0, sent[0]))->is_done());
  CHECK(ranks.submit(1, message(true, 0, 0, sent[0]))->is_done());

  for (auto& data : received) receives.push_back(ranks.submit(1, message(false, 0, 0, data)));
  ranks.settle();
  CHECK(std::all_of(sends.begin(), sends.end(), is_done));
  CHECK(std::all_of(receives.begin(), receives.end(), is_done));
  CHECK(received == sent);
  for (int rank = 0; rank < 3; ++rank) ranks.at(rank).leave_all();
}

TEST_CASE("small messages that are received or refused make room again") {
  MessagesByHand ranks(2);
  const bool refused = GENERATE(false, true);
  if (refused) ranks.at(1).leave(7);
  std::vector<float> data(PointToPoint::inline_bytes / sizeof(float), 3), into(data.size());
  const std::size_t window = InlineWindow::bytes / PointToPoint::inline_bytes;
  for (std::size_t i = 0; i < 4 * window; ++i) {
    CAPTURE(i);
    const auto send = ranks.submit(0, message(true, 1, 0, data, 7));
    REQUIRE(send->is_done());
    if (!refused) REQUIRE_FALSE(ranks.submit(1, message(false, 0, 0, into, 7))->is_done());
    ranks.settle();
  }
}

TEST_CASE("sends that wait for room end where their receiver leaves") {
  MessagesByHand ranks(3);
  std::vector<float> data(PointToPoint::inline_bytes / sizeof(float));
  const auto send_until_it_waits = [&] {
    auto send = ranks.submit(0, message(true, 1, 0, data, 7));
    while (send->is_done()) send = ranks.submit(0, message(true, 1, 0, data, 7));
    ranks.settle();
    return send;
  };
  const auto left = send_until_it_waits();
  ranks.at(1).leave(7);
  ranks.settle();
  CHECK(outcome(left) == ErrorCode::shutdown);
  std::vector<float> other(data);
  auto gone = ranks.submit(0, message(true, 1, 0, other, 8));
  while (gone->is_done()) gone = ranks.submit(0, message(true, 1, 0, other, 8));
  ranks.settle();
  ranks.good_bye(1);
  ranks.settle();
  CHECK(outcome(gone) == ErrorCode::shutdown);
}

TEST_CASE("a rank may send itself more small messages than there is room for") {
  run_engines(
      1, {},
      [](int, Runtime& engine) {
        std::vector<float> none;
        std::vector<Handle> handles;
        const std::size_t count = InlineWindow::bytes / InlineWindow::offer_bytes + 3;
        for (std::size_t i = 0; i < count; ++i) handles.push_back(send(engine, 0, none));
        for (std::size_t i = 0; i < count; ++i) finish(recv(engine, 0, none));
        for (const Handle& handle : handles) finish(handle);
      },
      nullptr, Sharing::memory);
}

TEST_CASE("what is sent to a set that its receiver has left is refused, before and after") {
  MessagesByHand ranks(2);
  std::vector<float> large(5000, 1);
  const auto early = ranks.submit(0, message(true, 1, 0, large, 7));
  const auto elsewhere = ranks.submit(0, message(true, 1, 0, large, 8));
  ranks.settle();
  CHECK_FALSE(early->is_done());
  ranks.at(1).leave(7);
  ranks.settle();
  CHECK(outcome(early) == ErrorCode::shutdown);
  const auto late = ranks.submit(0, message(true, 1, 0, large, 7));
  ranks.settle();
  CHECK(outcome(late) == ErrorCode::shutdown);
  CHECK(late->status.peer() == 1);
  CHECK_FALSE(elsewhere->is_done());
  ranks.at(1).leave_all();
  ranks.settle();
  CHECK(outcome(elsewhere) == ErrorCode::shutdown);
}

TEST_CASE("what is sent to a set that has been removed is refused, before and after") {
  MessagesByHand ranks(2);
  std::vector<float> large(5000, 1), small(1, 1), received(5000), later(1);
  const auto early = ranks.submit(0, message(true, 1, 0, large, 7));
  const auto matched = ranks.submit(0, message(true, 1, 1, large, 7));
  const auto elsewhere = ranks.submit(0, message(true, 1, 0, large, 8));
  const auto taken = ranks.submit(1, message(false, 0, 1, received, 7));
  ranks.settle();
  CHECK_FALSE(early->is_done());
  ranks.remove(7);
  ranks.at(1).forget(7);
  ranks.settle();
  CHECK(outcome(early) == ErrorCode::shutdown);
  CHECK(early->status.message() == "process set 7 was removed before rank 1 received the message");
  CHECK(outcome(matched) == ErrorCode::ok);
  CHECK(outcome(taken) == ErrorCode::ok);
  CHECK(received == large);
  // From a rank that does not know of the end yet.
  const auto late = ranks.submit(0, message(true, 1, 0, large, 7));
  const auto late_and_small = ranks.submit(0, message(true, 1, 0, small, 7));
  ranks.settle();
  CHECK(outcome(late) == ErrorCode::shutdown);
  CHECK(outcome(late_and_small) == ErrorCode::ok);  // completed before it was refused
  CHECK_FALSE(elsewhere->is_done());
  ranks.at(1).leave_all();
  ranks.settle();
}

TEST_CASE("a receive in a set that has ended waits for those who may not have left, for a while") {
  MessagesByHand ranks(3);
  const Time start{1h};
  std::vector<float> data(10), other(10), elsewhere(10);
  const auto from_any = ranks.submit(0, message(false, any_source, 1, data, 7));
  const auto from_one = ranks.submit(0, message(false, 1, 2, other, 7));
  const auto in_another = ranks.submit(0, message(false, 1, 1, elsewhere, 8));
  ranks.at(0).close(7, Status(ErrorCode::shutdown, "rank 2 has left"), start, 10s);
  ranks.settle(start + 10s - 1ns);
  CHECK_FALSE(from_any->is_done());
  CHECK_FALSE(from_one->is_done());
  CHECK(ranks.at(0).next_deadline() == start + 10s);
  ranks.good_bye(1);
  ranks.settle(start + 10s - 1ns);
  CHECK(outcome(from_one) == ErrorCode::shutdown);
  CHECK_FALSE(from_any->is_done());
  ranks.settle(start + 10s);
  CHECK(outcome(from_any) == ErrorCode::shutdown);
  CHECK(from_any->status.message() == "rank 2 has left");
  CHECK_FALSE(in_another->is_done());
  CHECK_FALSE(ranks.at(0).next_deadline());
  ranks.at(0).fail_all(Status(ErrorCode::shutdown, "the end"));
  CHECK(outcome(in_another) == ErrorCode::shutdown);
}

TEST_CASE("a send to a rank that has shut down fails, one to another goes on") {
  MessagesByHand ranks(3);
  std::vector<float> large(5000, 1), into(5000);
  const auto lost = ranks.submit(0, message(true, 1, 3, large));
  const auto kept = ranks.submit(0, message(true, 2, 3, large));
  ranks.settle();
  ranks.good_bye(1);
  ranks.settle();
  CHECK(outcome(lost) == ErrorCode::shutdown);
  CHECK(lost->status.peer() == 1);
  CHECK(lost->status.message().find("tag 3") != std::string::npos);
  CHECK_FALSE(kept->is_done());
  const auto received = ranks.submit(2, message(false, 0, 3, into));
  ranks.settle();
  CHECK(outcome(kept) == ErrorCode::ok);
  CHECK(outcome(received) == ErrorCode::ok);
  CHECK(into == large);
}

TEST_CASE("a set that only its members know works beside the world") {
  const Sharing sharing = GENERATE(from_range(std::begin(sharings), std::end(sharings)));
  run_engines(
      3, {},
      [&](int rank, Runtime& engine) {
        const int number = first_formed_set + 17;
        if (rank != 1) {
          if (rank == 2) std::this_thread::sleep_for(20ms);  // so that rank 0's messages are early
          expect(engine.sets().form(number, {0, 2}).ok(), "a set");
          for (int round = 0; round < 20; ++round) {
            std::vector<float> data(100, 1);
            finish(submit(engine, allreduce_of(data, DataType::float32, "x"), number));
            expect(data[99] == 2, "the sum over the set");
          }
          std::vector<float> data(2000, static_cast<float>(rank));
          finish(rank == 0 ? send(engine, 2, data, 0, number) : recv(engine, 0, data, 0, number));
          expect(data[0] == 0, "a message within the set");
          expect(engine.sets().destroy(number).ok(), "its end");
          const Status again = engine.sets().form(number, {0, 2});
          expect(again.code() == ErrorCode::invalid_argument, "a number serves once");
        } else {
          expect(!engine.sets().form(number, {0, 2}).ok(), "members only");
        }
        std::vector<float> world(100, 1);
        finish(submit(engine, allreduce_of(world, DataType::float32, "w")));
        expect(world[0] == 3, "the sum over the world");
        expect(!engine.sets().form(5, {rank}).ok(), "such numbers are the world's");
        expect(!engine.sets().destroy(0).ok(), "the world is not destroyed");
      },
      nullptr, sharing);
}

TEST_CASE("a send that nobody has received ends when its set is removed") {
  std::barrier together(3);
  run_engines(3, {}, [&](int rank, Runtime& engine) {
    std::vector<float> large(5000, 1);
    const int set = add_set(engine, {0, 1, 2});
    Handle sent;
    if (rank == 2) sent = send(engine, 1, large, 0, set);
    together.arrive_and_wait();
    remove_set(engine, set);
    if (rank == 2) fails<ShutdownError>([&] { finish(sent); });
    together.arrive_and_wait();
  });
}

TEST_CASE("sets that begin at the same time lose no message") {
  run_engines(3, {}, [](int rank, Runtime& engine) {
    for (int round = 0; round < 200; ++round) {
      const int number = first_formed_set + round;
      const std::vector<int> ranks = round % 2 == 0 ? std::vector{0, 1, 2} : std::vector{0, 2};
      if (round % 2 != 0 && rank == 1) continue;
      expect(engine.sets().form(number, ranks).ok(), "a set");
      std::vector<float> data(3, 1);
      finish(submit(engine, allreduce_of(data, DataType::float32, "x"), number));
      expect(data[0] == static_cast<float>(ranks.size()), "the sum over the set");
      if (round >= 100) expect(engine.sets().destroy(number).ok(), "its end");
    }
  });
}

TEST_CASE("a queue hears of what completes, before or after it asks") {
  run_engines(2, {}, [](int rank, Runtime& engine) {
    CompletionQueue queue;
    expect(queue.wait(1ms).empty(), "nothing yet");
    std::vector<float> early(10, 1), late(10, 1);
    const Handle first = submit(engine, allreduce_of(early, DataType::float32, "first"));
    finish(first);
    queue.watch(first, 1);
    expect(queue.wait(10s) == std::vector<std::uint64_t>{1}, "what was done already");
    if (rank == 1) std::this_thread::sleep_for(20ms);
    const Handle second = submit(engine, allreduce_of(late, DataType::float32, "second"));
    queue.watch(second, 2);
    fails<InvalidArgumentError>([&] { queue.watch(second, 3); });
    expect(queue.wait(10s) == std::vector<std::uint64_t>{2}, "what completes by itself");
    queue.nudge();
    expect(queue.wait(10s).empty(), "nothing after a nudge");
    queue.close();
    expect(queue.wait(10s).empty() && queue.is_closed(), "nothing after its end");
  });
}

TEST_CASE("of several threads that wait for a queue, some get all that completes, and each ends") {
  run_engines(2, {}, [](int, Runtime& engine) {
    constexpr std::uint64_t count = 200;
    CompletionQueue queue;
    std::atomic<std::uint64_t> sum = 0;
    std::atomic<std::uint64_t> heard = 0;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&] {
        while (!queue.is_closed()) {
          for (const std::uint64_t token : queue.wait(24h)) {
            sum += token;
            ++heard;
          }
        }
      });
    }
    std::vector<float> data(10, 1);
    for (std::uint64_t token = 1; token <= count; ++token) {
      const Handle handle = submit(engine, allreduce_of(data, DataType::float32, "x"));
      queue.watch(handle, token);
      finish(handle);
    }
    // Bounded: a waiter that misses a completion would only wake when the queue is closed.
    const Time deadline = soon();
    while (heard < count && Clock::now() < deadline) std::this_thread::yield();
    const std::uint64_t heard_in_time = heard;
    queue.close();
    for (std::thread& thread : threads) thread.join();
    expect(heard_in_time == count, "nobody sleeps over what has come");
    expect(sum == count * (count + 1) / 2, "each once");
  });
}

}  // namespace rueda::test::messages_test
