// Process sets that are added and removed leak nothing.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <new>
#include <string>

#include "ranks/engine_ranks.h"

namespace {

std::atomic<long> blocks{0};  // allocated and not freed

}  // namespace

void* operator new(std::size_t bytes) {
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) {
    ++blocks;
    return memory;
  }
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  if (memory != nullptr) --blocks;
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}

namespace rueda::test::set_memory_test {

namespace {

struct Usage {
  long blocks = 0;
  long descriptors = 0;
  long mappings = 0;
};

Usage usage() {
  const std::filesystem::directory_iterator descriptors("/proc/self/fd");
  std::ifstream mappings("/proc/self/maps");
  Usage now;
  now.blocks = ::blocks;
  now.descriptors = std::distance(begin(descriptors), end(descriptors));
  now.mappings = std::count(std::istreambuf_iterator<char>(mappings), {}, '\n');
  return now;
}

}  // namespace

TEST_CASE("process sets that come and go leave neither memory nor descriptors behind") {
  // The first sets fill the caches.
  constexpr int warm_up = 700;
  constexpr int sets = 1000;
  constexpr long in_motion = 400;  // blocks of sets that are on their way out during the count
  run_engines(
      2, {},
      [&](int rank, Runtime& engine) {
        const auto come_and_go = [&](int count) {
          for (int i = 0; i < count; ++i) {
            const int set = add_set(engine, {0, 1});
            std::vector<float> tensor(100, 1);
            finish(submit(engine, allreduce_of(tensor, DataType::float32, ""), set));
            expect(tensor[99] == 2, "the sum of the set");
            remove_set(engine, set);
          }
        };
        come_and_go(warm_up);
        // The least of several counts, since a set may still be on its way out during one. On one
        // rank only: counting opens files itself.
        const auto least_usage = [&] {
          Usage least{std::numeric_limits<long>::max(), std::numeric_limits<long>::max(),
                      std::numeric_limits<long>::max()};
          for (int count = 0; count < 100; ++count) {
            come_and_go(1);
            if (rank != 0) continue;
            const Usage now = usage();
            least = {std::min(least.blocks, now.blocks),
                     std::min(least.descriptors, now.descriptors),
                     std::min(least.mappings, now.mappings)};
          }
          return least;
        };
        const Usage before = least_usage();
        come_and_go(sets);
        const Usage after = least_usage();
        if (rank != 0) return;
        expect(after.blocks - before.blocks < in_motion,
               str(after.blocks - before.blocks, " blocks more after ", sets, " sets"));
        expect(after.descriptors <= before.descriptors, "descriptors");
        expect(after.mappings - before.mappings < 50, "mappings");
      },
      nullptr, Sharing::memory);
}

}  // namespace rueda::test::set_memory_test
