// Worlds that follow one another in the same processes, simulated by threads.
#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "api/succession.h"
#include "core/strings.h"
#include "membership/member_bootstrap.h"
#include "membership/world.h"
#include "ranks/engine_ranks.h"
#include "ranks/rank_threads.h"
#include "transport/inproc.h"

namespace rueda::test::recovery_test {

namespace {

Options options_of(const std::string& transport, int min_np = 1) {
  Options options;
  options.recovery = "on";
  options.transport = transport;
  options.heartbeat = 30;  // a sanitizer may delay threads for long
  options.min_np = min_np;
  return options;
}

// A rank, through all its worlds.
class Rank {
 public:
  Rank(InprocHub& hub, int rank, const Options& options) : options_(options) {
    const auto bootstrap = hub.make_bootstrap(rank);
    auto formed = form_world(*bootstrap, options, {nullptr, Status(ErrorCode::unsupported, "")});
    expect_ok(formed.status(), "forming the first world");
    const auto sets = std::make_shared<ProcessSets>(rank, bootstrap->size());
    auto succession = Succession::open(
        *bootstrap, {formed.value(), 0, sets}, options,
        [this](World world, Bootstrap& members, std::uint64_t, Succession::OnFailure on_failure,
               std::shared_ptr<ProcessSets> inherited) {
          return start(std::move(world), members, std::move(on_failure), std::move(inherited));
        },
        soon());
    expect_ok(succession.status(), "opening what outlives it");
    succession_ = std::move(succession).value();
    runtime_ = start(std::move(formed).value(), *bootstrap, succession_->on_first_failure(), sets);
    runtime_->take_over(0);
  }

  // Like a process that ends.
  void die() {
    succession_.reset();
    runtime_->abort("dies");
  }

  // Sums rank + 1 over all ranks.
  Status add_up(float& total) {
    std::vector<float> values(5, static_cast<float>(runtime_->topology().rank + 1));
    const Handle handle = submit(*runtime_, allreduce_of(values, DataType::float32, "sum"));
    const Status status = handle.state()->wait(soon()) == FutexWake::changed
                              ? handle.state()->status
                              : Status(ErrorCode::timeout, "an allreduce hangs");
    total = values.front();
    return status;
  }
  void until_broken() {
    float total = 0;
    Status status;
    while (status.ok()) status = add_up(total);
    expect(status.code() == ErrorCode::peer_lost, "broken: " + status.to_string());
  }
  Expected<Recovery> recover() {
    auto next = succession_->take_next(soon());
    if (!next) return next.status();
    next->runtime->take_over(next->recovery.epoch);
    runtime_->shutdown();
    runtime_ = std::move(next->runtime);
    return next->recovery;
  }
  [[nodiscard]] Runtime& runtime() const { return *runtime_; }
  [[nodiscard]] int size() const { return runtime_->topology().size; }

 private:
  std::shared_ptr<Runtime> start(World world, Bootstrap& members, Succession::OnFailure on_failure,
                                 std::shared_ptr<ProcessSets> sets) const {
    auto started = Runtime::start(std::move(world), options_, LossPolicy::end_world,
                                  std::move(on_failure), {std::move(sets), history_});
    members.begin_last();
    const Status all = members.agree("connected", started.status(), soon());
    started.status().throw_if_error();
    std::shared_ptr<Runtime> runtime = std::move(started).value();
    if (!all.ok()) runtime->abort(all.to_string());  // others must not take it for a regular leave
    all.throw_if_error();
    return runtime;
  }

  const Options options_;
  const std::shared_ptr<History> history_ = std::make_shared<History>();
  std::unique_ptr<Succession> succession_;
  std::shared_ptr<Runtime> runtime_;
};

}  // namespace

TEST_CASE("ranks that are left form world after world") {
  const std::string transport = GENERATE("auto", "tcp");
  // The ranks that die in each world, by their numbers in the first.
  const auto deaths =
      GENERATE(std::vector<std::set<int>>{{1}}, std::vector<std::set<int>>{{0}, {2}},
               std::vector<std::set<int>>{{0, 3}, {1}});
  constexpr int size = 5;
  InprocHub hub(size);
  std::vector<std::atomic<int>> through(deaths.size());  // number of ranks, by world
  run_ranks(size, [&](int number) {
    Rank rank(hub, number, options_of(transport));
    std::set<int> dead;
    for (std::size_t world = 0; world < deaths.size(); ++world) {
      const std::set<int>& dying = deaths[world];
      if (dying.contains(number)) return rank.die();
      rank.until_broken();
      dead.insert(dying.begin(), dying.end());
      // Two ranks that die together may be lost one after the other.
      for (bool last = false; !last;) {
        const auto recovery = rank.recover();
        expect_ok(recovery.status(), "recovery");
        last = rank.size() == size - static_cast<int>(dead.size());
        if (!last) rank.until_broken();
      }
      float total = 0;
      expect_ok(rank.add_up(total), "the first sum of a new world");
      const int left = size - static_cast<int>(dead.size());
      expect(total == static_cast<float>(left * (left + 1) / 2), "its value");
      ++through[world];
      await([&] { return through[world] == left; }, "all are through");
    }
  });
}

TEST_CASE("process sets go on in the worlds that follow") {
  const std::string transport = GENERATE("auto", "tcp");
  constexpr int size = 4;
  InprocHub hub(size);
  std::atomic<int> added{0};
  std::atomic<int> through{0};
  run_ranks(size, [&](int number) {
    Rank rank(hub, number, options_of(transport));
    const int with = add_set(rank.runtime(), {0, 1, 3});
    const int without = add_set(rank.runtime(), {2, 3});
    const int alone = add_set(rank.runtime(), {1});
    ++added;
    await([&] { return added == size; }, "all have them");
    if (number == 1) return rank.die();
    rank.until_broken();
    expect_ok(rank.recover().status(), "recovery");
    const ProcessSets& sets = rank.runtime().process_sets();
    expect(sets.find(with)->ranks == std::vector<int>{0, 2}, "the set of the lost rank");
    expect(sets.find(without)->ranks == std::vector<int>{1, 2}, "the set without it");
    for (const int id : {with, without, alone}) {
      std::vector<float> ones(5, 1);
      const Handle handle =
          submit(rank.runtime(), allreduce_of(ones, DataType::float32, "in a set"), id);
      if (sets.find(id)->rank >= 0) {
        finish(handle);
        expect(ones.front() == 2, "the sum of a set");
      } else if (id == alone) {
        expect(error_of<InvalidArgumentError>(handle).find("all of whose members are lost") !=
                   std::string::npos,
               "a set without members");
      }
    }
    expect(add_set(rank.runtime(), {0}) == alone + 1, "the next number");
    ++through;
    await([&] { return through == size - 1; }, "all are through");
  });
}

TEST_CASE("counters and a timeline go on in the worlds that follow") {
  const std::string transport = GENERATE("auto", "tcp");
  constexpr int size = 4;
  const std::string path = str("recovery_test_", ::getpid(), "_%r.json");
  const auto path_of = [&](int rank) {
    return std::string(path).replace(path.find("%r"), 2, std::to_string(rank));
  };
  InprocHub hub(size);
  std::array<std::atomic<int>, 2> through{};
  run_ranks(size, [&](int number) {
    Rank rank(hub, number, options_of(transport));
    const History& history = *rank.runtime().history();
    expect_ok(rank.runtime().timeline().open(path), "a timeline begins");
    std::vector<std::uint64_t> epochs;
    std::string smaller;
    // Like a monitoring thread, also during the change of worlds.
    std::jthread watcher([&](const std::stop_token& end) {
      auto before = history.values();
      while (!end.stop_requested()) {
        auto now = history.values();
        for (const auto& [name, value] : before) {
          if (now.at(name) < value) smaller = name;
        }
        before = std::move(now);
      }
    });
    for (int world = 0; world < 2; ++world) {
      if (number == 3 - world) return rank.die();
      rank.until_broken();
      const auto tensors = history.values().at("allreduce_tensors");
      const auto recovery = rank.recover();
      expect_ok(recovery.status(), "recovery");
      epochs.push_back(recovery->epoch);
      float total = 0;
      expect_ok(rank.add_up(total), "the first sum of a new world");
      expect(history.values().at("allreduce_tensors") == tensors + 1, "one more");
      ++through[static_cast<std::size_t>(world)];
      await([&] { return through[static_cast<std::size_t>(world)] == size - 1 - world; },
            "all are through");
    }
    watcher.request_stop();
    watcher.join();
    expect(smaller.empty(), smaller + " does not go back");
    rank.runtime().timeline().close();
    std::ifstream file(path_of(number));
    const std::string trace(std::istreambuf_iterator<char>(file), {});
    for (const std::uint64_t epoch : epochs) {
      const auto mark = str(R"("args":{"epoch":)", epoch, ",\"rank\":", number, ",\"size\":");
      const auto found = trace.find(mark);
      expect(found != std::string::npos, mark);
      expect(trace.find("\"ALLREDUCE\"", found) != std::string::npos, "bars behind it");
    }
    expect(trace.ends_with("]\n"), "the end");
  });
  for (int rank = 0; rank < size; ++rank) ::unlink(path_of(rank).c_str());
}

TEST_CASE("too few stop, and say so") {
  constexpr int size = 3;
  InprocHub hub(size);
  run_ranks(size, [&](int number) {
    Rank rank(hub, number, options_of("auto", 3));
    if (number == 1) return rank.die();
    rank.until_broken();
    const auto recovery = rank.recover();
    expect(recovery.status().code() == ErrorCode::peer_lost, recovery.status().to_string());
    expect(recovery.status().to_string().find("fewer than 3") != std::string::npos,
           recovery.status().to_string());
  });
}

namespace {

// Members that exchange messages in one thread.
struct Exchange {
  std::map<int, std::unique_ptr<MemberBootstrap>> members;
  std::vector<std::tuple<int, int, std::vector<std::byte>>> queue;

  Status deliver() {
    if (queue.empty()) return Status(ErrorCode::timeout, "nothing comes");
    const auto batch = std::exchange(queue, {});
    for (const auto& [from, to, message] : batch) members.at(to)->receive(from, message);
    return {};
  }
};

}  // namespace

TEST_CASE("members tell each other what they put, and drop what is none of theirs") {
  Exchange exchange;
  const std::vector<int> processes{2, 5, 9};
  for (const int process : processes) {
    exchange.members[process] = std::make_unique<MemberBootstrap>(
        MemberBootstrap::Links{[&exchange, process](int to, const std::vector<std::byte>& message) {
                                 exchange.queue.emplace_back(process, to, message);
                               },
                               [&exchange](Time) { return exchange.deliver(); }, "secret"},
        processes, process);
  }
  MemberBootstrap& first = *exchange.members[2];
  MemberBootstrap& second = *exchange.members[5];
  CHECK(first.rank() == 0);
  CHECK(second.rank() == 1);
  CHECK(second.size() == 3);
  CHECK(second.secret() == "secret");
  REQUIRE(second.put("key", "value").ok());
  CHECK_FALSE(second.put("key", "other").ok());
  CHECK_FALSE(first.get("key").ok());
  const std::array<std::byte, 3> nonsense{std::byte{255}, std::byte{255}, std::byte{1}};
  second.receive(2, nonsense);
  second.receive(77, nonsense);
  // Nonsense does not count as another member's part of the barrier.
  const Status alone = second.barrier(Clock::now());
  CHECK(alone.code() == ErrorCode::initialization);
  CHECK(alone.peer() == 0);
}

}  // namespace rueda::test::recovery_test
