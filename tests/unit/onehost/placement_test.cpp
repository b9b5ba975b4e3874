#include "onehost/placement.h"

#include <sched.h>

#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <chrono>
#include <vector>

#include "coordinator/backoff.h"
#include "core/strings.h"
#include "onehost/processors.h"
#include "ranks/rank_threads.h"
#include "transport/inproc.h"

namespace rueda::test::placement_test {

namespace {

using namespace std::chrono_literals;

// Runs body(memory) on threads that share memory.
void on_one_host(int size, const std::function<void(const std::shared_ptr<HostMemory>&)>& body) {
  InprocHub hub(size);
  run_ranks(size, [&](int rank) {
    const auto bootstrap = hub.make_bootstrap(rank);
    auto formed = HostMemory::form(*bootstrap, soon());
    expect_ok(formed.status(), "sharing memory");
    body(formed.value());
  });
}

void allow(const std::vector<int>& processors) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const int processor : processors) CPU_SET(processor, &mask);
  expect(::sched_setaffinity(0, sizeof mask, &mask) == 0, "processors that can be chosen");
}

bool has_two_processors() {
  if (allowed_processors().size() > 1) return true;
  WARN("skipped: there is only one processor");
  return false;
}

}  // namespace

TEST_CASE("ranks find each other on one processor, and not on two") {
  if (!has_two_processors()) return;
  const std::vector<int> all = allowed_processors();
  std::barrier together(2);
  on_one_host(2, [&](const std::shared_ptr<HostMemory>& host) {
    Placement placement(host);
    allow({all[0]});
    (void)placement.shares_processor();  // records the processor
    together.arrive_and_wait();
    expect(placement.shares_processor(), "both are on one");
    together.arrive_and_wait();
    allow({all[static_cast<std::size_t>(host->rank())]});
    (void)placement.shares_processor();
    together.arrive_and_wait();
    expect(!placement.shares_processor(), "each is on its own");
    together.arrive_and_wait();
  });
}

TEST_CASE("a rank moves to where no other is, and may run where it might before") {
  if (!has_two_processors()) return;
  const std::vector<int> all = allowed_processors();
  std::barrier together(2);
  on_one_host(2, [&](const std::shared_ptr<HostMemory>& host) {
    Placement placement(host);
    allow({all[0]});
    (void)placement.shares_processor();
    together.arrive_and_wait();
    if (host->rank() == 0) {
      bool was_elsewhere = false;
      for (int attempt = 0; attempt < 100 && !was_elsewhere; ++attempt) {
        allow({all[0]});
        allow(all);
        const Time now = Clock::now() + attempt * 1s;  // not too soon after the last attempt
        if (::sched_getcpu() != all[0]) continue;      // the kernel moved it first
        expect(placement.move_apart(now), "there is another processor");
        expect(!placement.move_apart(now), "not again at once");
        was_elsewhere = ::sched_getcpu() != all[0];
        expect(allowed_processors() == all, "it may run where it might");
      }
      expect(was_elsewhere, "it has moved");
    }
    together.arrive_and_wait();
  });
}

TEST_CASE("a rank that was given one processor stays there") {
  std::barrier together(2);
  std::atomic<int> turn = 0;
  const std::vector<int> all = allowed_processors();
  on_one_host(2, [&](const std::shared_ptr<HostMemory>& host) {
    Placement placement(host);
    allow({all[0]});
    (void)placement.shares_processor();
    together.arrive_and_wait();
    expect(placement.shares_processor(), "both are on one");
    expect(!placement.move_apart(Clock::now()), "there is no other");
    expect(allowed_processors() == std::vector<int>{all[0]}, "it stays");
    together.arrive_and_wait();
    // They take turns, for which each must yield the processor: until the system takes it away,
    // one that spins looks some 100,000 times.
    constexpr int turns = 40;
    constexpr int looks_per_turn = 2000;
    Backoff backoff(false, 1h, placement);
    int looks = 0;
    for (int round = 0; round < turns / 2; ++round) {
      const int own = 2 * round + host->rank();
      for (backoff.renew(); turn.load() != own; ++looks) {
        expect(backoff.back_off(Clock::now()), "it looks again");
      }
      turn = own + 1;
    }
    expect(looks < turns * looks_per_turn, str("the processor is yielded: ", looks, " looks"));
    together.arrive_and_wait();
  });
}

TEST_CASE("whoever shares memory with nobody shares no processor") {
  Placement placement(nullptr);
  CHECK_FALSE(placement.shares_processor());
  CHECK_FALSE(placement.move_apart(Clock::now()));
}

}  // namespace rueda::test::placement_test
