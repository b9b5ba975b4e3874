// Ranks that sleep before the last one arrives are woken to share the work, not when it is done.
#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "onehost/host_pull.h"
#include "onehost/host_reduction.h"
#include "onehost/registered_memory.h"
#include "onehost/wake.h"
#include "ranks/open_channels.h"

namespace rueda::test::sleepers_help_test {

namespace {

constexpr std::size_t chunk = 4096;
constexpr std::int64_t chunks = 8;
constexpr auto count = static_cast<std::int64_t>(chunk / sizeof(float)) * chunks;
constexpr std::size_t bytes = chunk * chunks;

std::vector<std::shared_ptr<std::byte[]>> tensors(std::size_t ranks) {
  auto pool = RegisteredMemory::of_process();
  pool.status().throw_if_error();
  std::vector<std::shared_ptr<std::byte[]>> all;
  while (all.size() < ranks) all.push_back(pool.value()->allocate(bytes));
  return all;
}

// All ranks but the last arrive and sleep. Returns their sleepers.
template <class Collective>
std::vector<std::unique_ptr<Sleeper>> go_to_sleep(
    const std::vector<std::unique_ptr<HostChannel>>& channels, std::vector<Collective>& all) {
  std::vector<std::unique_ptr<Sleeper>> sleepers;
  for (std::size_t i = 0; i + 1 < all.size(); ++i) {
    REQUIRE(all[i]->advance());
    REQUIRE_FALSE(all[i]->advance());
    REQUIRE_FALSE(all[i]->advance());  // wakes sleepers, of which there are none
    sleepers.push_back(std::make_unique<Sleeper>(
        channels[i]->memory().flags(static_cast<int>(i)).wake, Sleeper::On::word));
  }
  return sleepers;
}

bool is_woken(Sleeper& sleeper) {
  return sleeper.sleep(Clock::now()) == FutexWake::changed;
}

template <class Collective>
void check_that_sleepers_are_woken(const std::vector<std::unique_ptr<HostChannel>>& channels,
                                   std::vector<Collective>& all) {
  const auto sleepers = go_to_sleep(channels, all);
  REQUIRE(all.back()->advance());
  for (const auto& sleeper : sleepers) CHECK(is_woken(*sleeper));
  CHECK_FALSE(all.back()->done());
  // They have work to do and need not be woken again.
  all.back()->advance();
  for (const auto& sleeper : sleepers) CHECK_FALSE(is_woken(*sleeper));
  for (auto& each : all) CHECK(each->advance());
  bool moved = true;
  while (moved) {
    moved = false;
    for (auto& each : all) moved = each->advance() || moved;
  }
  for (const auto& each : all) {
    CHECK(each->done());
    CHECK(each->status().ok());
  }
}

}  // namespace

TEST_CASE("the last rank to arrive wakes the others before it combines what they all can") {
  const std::size_t size = GENERATE(as<std::size_t>{}, 2, 3);
  const bool is_staged = GENERATE(false, true);
  const auto channels = open_channels(static_cast<int>(size), slot_bytes);
  HostPolicy policy;
  policy.chunk = chunk;
  policy.flat_limit = 0;
  policy.staged_limit = is_staged ? bytes : 0;
  const Combination sum{.dtype = DataType::float32, .op = ReduceOp::sum};
  const auto registered = tensors(size);
  std::vector<std::vector<float>> own(size, std::vector<float>(count, 1.0F));
  std::vector<std::unique_ptr<HostReduction>> all;
  for (std::size_t i = 0; i < size; ++i) {
    auto* const data =
        is_staged ? reinterpret_cast<std::byte*>(own[i].data()) : registered[i].get();
    all.push_back(std::make_unique<HostReduction>(*channels[i], policy, sum, static_cast<int>(size),
                                                  std::vector<Piece>{{data, data, count}}));
  }
  check_that_sleepers_are_woken(channels, all);
}

TEST_CASE("the last rank to arrive wakes the others before it takes what it needs of theirs") {
  const auto channels = open_channels(3, slot_bytes);
  HostPolicy policy;
  policy.chunk = chunk;
  const auto offered = tensors(3);
  const auto taken = tensors(3);
  std::vector<std::unique_ptr<HostPull>> all;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto from_next = [&, i](const HostPull&) {
      const int next = static_cast<int>((i + 1) % 3);
      return std::vector<HostPull::Transfer>{{next, 0, taken[i].get(), bytes}};
    };
    all.push_back(std::make_unique<HostPull>(*channels[i], policy, offered[i].get(), bytes,
                                             std::vector<std::int64_t>{}, from_next));
  }
  check_that_sleepers_are_woken(channels, all);
}

}  // namespace rueda::test::sleepers_help_test
