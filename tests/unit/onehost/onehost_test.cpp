// Collectives in shared memory: ranks are threads, driven by the test instead of an engine.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "effort.h"
#include "onehost/host_pull.h"
#include "onehost/host_reduction.h"
#include "onehost/registered_memory.h"
#include "ranks/rank_threads.h"
#include "transport/inproc.h"

namespace rueda::test::onehost_test {

namespace {

// Runs body(channel) on `size` ranks that share memory.
void run_on_host(int size, const std::function<void(HostChannel&)>& body) {
  InprocHub hub(size);
  run_ranks(size, [&](int rank) {
    auto host = HostMemory::form(*hub.make_bootstrap(rank), soon());
    host.status().throw_if_error();
    std::vector<int> members(static_cast<std::size_t>(size));
    std::iota(members.begin(), members.end(), 0);
    HostChannel channel(host.value(), members, rank, 7, HostChannel::WokenBy::channel);
    body(channel);
  });
}

template <class Collective>
void finish(Collective& collective) {
  const Time deadline = soon();
  while (!collective.done()) {
    if (collective.advance()) continue;
    std::this_thread::yield();
    expect(Clock::now() < deadline, "a collective that ends");
  }
  collective.status().throw_if_error();
}

// Advances until it has arrived, which requires that the others have opened the channel.
template <class Collective>
void arrive(Collective& collective) {
  const Time deadline = soon();
  while (!collective.advance()) {
    std::this_thread::yield();
    expect(Clock::now() < deadline, "a channel that all open");
  }
}

HostPolicy small_policy() {
  HostPolicy policy;
  policy.flat_limit = 1024;
  policy.registered_min = 128;
  policy.chunk = 512;
  return policy;
}

template <class T>
std::byte* bytes_of(T* data) {
  return reinterpret_cast<std::byte*>(data);
}

// The kind of memory that holds a rank's tensors.
enum class Memory { ordinary, registered, mixed };

struct Tensor {
  Tensor(std::size_t count, Memory memory, int rank) {
    const bool registered =
        memory == Memory::registered || (memory == Memory::mixed && rank % 2 == 1);
    if (registered) {
      auto pool = RegisteredMemory::of_process();
      pool.status().throw_if_error();
      owner = pool.value()->allocate(std::max<std::size_t>(1, count) * sizeof(float));
    } else {
      owner = std::shared_ptr<std::byte[]>(new std::byte[count * sizeof(float) + 1]);
    }
    data = reinterpret_cast<float*>(owner.get());
  }
  std::shared_ptr<std::byte[]> owner;
  float* data;
};

}  // namespace

TEST_CASE("an allreduce of any size, in any memory, sums in the order of the ranks") {
  const int size = GENERATE(from_range(efforts({1, 2, 3, 4}, {1, 3})));
  const Memory memory = GENERATE(Memory::ordinary, Memory::registered, Memory::mixed);
  const std::vector<std::size_t> counts{0, 1, 13, 14, 15, 33, 100, 255, 256, 257, 1000, 5003};
  run_on_host(size, [&](HostChannel& channel) {
    const int rank = channel.rank();
    for (int round = 0; round < 3; ++round) {
      for (const std::size_t count : counts) {
        Tensor tensor(count, memory, rank);
        const auto value = [&](int of, std::size_t i) {
          // Values of all magnitudes, so that another order gives other bits.
          const auto mixed = (static_cast<std::uint32_t>(of * 1000003 + round * 17) +
                              static_cast<std::uint32_t>(i)) *
                             2654435761U;
          return static_cast<float>(static_cast<std::int32_t>(mixed ^ mixed >> 15)) * 0x1p-21F;
        };
        for (std::size_t i = 0; i < count; ++i) tensor.data[i] = value(rank, i);
        HostReduction reduction(
            channel, small_policy(), {.dtype = DataType::float32, .op = ReduceOp::sum}, size,
            {{bytes_of(tensor.data), bytes_of(tensor.data), static_cast<std::int64_t>(count)}});
        finish(reduction);
        for (std::size_t i = 0; i < count; ++i) {
          float sum = value(0, i);
          for (int other = 1; other < size; ++other) sum += value(other, i);
          expect(tensor.data[i] == sum, "element " + std::to_string(i));
        }
        // What a rank writes after the run must not affect others.
        for (std::size_t i = 0; i < count; ++i) tensor.data[i] = -1;
      }
    }
  });
}

TEST_CASE("tensors that others cannot see go through the slots, some ranks contributing nothing") {
  const int size = GENERATE(from_range(efforts({2, 3, 4}, {3})));
  const Memory memory = GENERATE(Memory::ordinary, Memory::registered, Memory::mixed);
  const bool in_place = GENERATE(true, false);
  HostPolicy policy = small_policy();
  policy.staged_limit = 8 << 20;
  // Tensors that would fit a slot as a whole are also split into parts.
  policy.flat_limit = GENERATE(std::size_t{1024}, slot_bytes);
  // One chunk, whole rounds, and more rounds than there is room for, between small tensors.
  const std::vector<std::size_t> counts{300, 8192, 20'001, 5, 300'001, 65'536, 400, 300'000};
  run_on_host(size, [&](HostChannel& channel) {
    const int rank = channel.rank();
    for (std::size_t round = 0; round < counts.size(); ++round) {
      const std::size_t count = counts[round];
      const int absent = round % 3 == 1 ? static_cast<int>(round) % size : -1;
      const auto value = [&](int of, std::size_t i) {
        return static_cast<float>((i * 7 + round + 1) % 1000 * static_cast<std::size_t>(of + 1)) *
               1.25F;
      };
      Tensor input(count, memory, rank);
      Tensor output(count, memory, rank);
      if (in_place) output = input;
      for (std::size_t i = 0; i < count; ++i) input.data[i] = value(rank, i);
      const bool here = rank != absent;
      HostReduction reduction(
          channel, policy, {.dtype = DataType::float32, .op = ReduceOp::sum},
          absent < 0 ? size : size - 1,
          {{here ? bytes_of(input.data) : nullptr, here ? bytes_of(output.data) : nullptr,
            static_cast<std::int64_t>(count)}});
      finish(reduction);
      expect(reduction.traffic().kernel == 0, "nothing goes through the kernel");
      for (std::size_t i = 0; i < count && here; ++i) {
        float sum = 0;
        bool is_first = true;
        for (int other = 0; other < size; ++other) {
          if (other == absent) continue;
          sum = is_first ? value(other, i) : sum + value(other, i);
          is_first = false;
        }
        expect(output.data[i] == sum, "element " + std::to_string(i));
      }
      for (std::size_t i = 0; i < count; ++i) input.data[i] = output.data[i] = -1;
    }
  });
}

TEST_CASE("several tensors are reduced together, some ranks contributing nothing") {
  const int size = GENERATE(2, 3);
  const std::size_t largest = GENERATE(as<std::size_t>{}, 3, 20, 3000);
  run_on_host(size, [&](HostChannel& channel) {
    const int rank = channel.rank();
    const bool joined = rank == 1;
    std::vector<Tensor> tensors;
    std::vector<Piece> pieces;
    std::vector<std::size_t> counts{largest, 0, largest / 2, 1};
    for (const std::size_t count : counts) {
      tensors.emplace_back(count, Memory::mixed, rank);
      std::fill_n(tensors.back().data, count, static_cast<float>(rank + 1));
      std::byte* data = bytes_of(tensors.back().data);
      pieces.push_back(
          {joined ? nullptr : data, joined ? nullptr : data, static_cast<std::int64_t>(count)});
    }
    Combination combination{.dtype = DataType::float32, .op = ReduceOp::average};
    combination.prescale = 4;
    combination.divisor = size - 1;
    combination.postscale = 0.5;
    HostReduction reduction(channel, small_policy(), combination, size - 1, pieces);
    finish(reduction);
    const float sum = static_cast<float>(size * (size + 1) / 2 - 2);
    const float expected = joined ? 2.0F : sum * 4 / static_cast<float>(size - 1) / 2;
    for (std::size_t k = 0; k < counts.size(); ++k) {
      for (std::size_t i = 0; i < counts[k]; ++i) {
        expect(tensors[k].data[i] == expected, "an average of those who contribute");
      }
    }
  });
}

TEST_CASE("input and output may be different tensors") {
  const std::size_t count = GENERATE(as<std::size_t>{}, 2, 100, 2000);
  run_on_host(3, [&](HostChannel& channel) {
    const Tensor input(count, Memory::registered, 0);
    const Tensor output(count, Memory::mixed, channel.rank());
    std::fill_n(input.data, count, 1.0F);
    HostReduction reduction(
        channel, small_policy(), {.dtype = DataType::float32, .op = ReduceOp::sum}, 3,
        {{bytes_of(input.data), bytes_of(output.data), static_cast<std::int64_t>(count)}});
    finish(reduction);
    for (std::size_t i = 0; i < count; ++i) {
      expect(input.data[i] == 1 && output.data[i] == 3, "an input that is left alone");
    }
  });
}

TEST_CASE("a reduce-scatter leaves each rank its part") {
  const std::int64_t scale = GENERATE(1, 30, 700);
  const bool rank_1_contributes = GENERATE(true, false);
  run_on_host(3, [&](HostChannel& channel) {
    const std::vector<std::int64_t> lengths{2 * scale, 0, 3 * scale};
    const auto count = static_cast<std::size_t>(5 * scale);
    const int rank = channel.rank();
    const Tensor input(count, Memory::mixed, rank);
    for (std::size_t i = 0; i < count; ++i) input.data[i] = static_cast<float>(i) + 1;
    const auto own = static_cast<std::size_t>(lengths[static_cast<std::size_t>(rank)]);
    std::vector<float> output(own + 1, -1);
    const bool contributes = rank != 1 || rank_1_contributes;
    const int contributors = rank_1_contributes ? 3 : 2;
    HostReduction reduction(
        channel, small_policy(), {.dtype = DataType::float32, .op = ReduceOp::sum}, contributors,
        contributes ? bytes_of(input.data) : nullptr, bytes_of(output.data()), lengths);
    finish(reduction);
    const std::size_t first = rank == 2 ? static_cast<std::size_t>(2 * scale) : 0;
    for (std::size_t i = 0; i < own; ++i) {
      expect(output[i] == static_cast<float>(first + i + 1) * static_cast<float>(contributors),
             "the sum of the own part");
    }
    expect(output[own] == -1, "nothing beyond it");
  });
}

TEST_CASE("ranks take what they need of each other's data") {
  const int size = GENERATE(1, 2, 4);
  const std::size_t count = GENERATE(as<std::size_t>{}, 0, 5, 300, 4001);
  run_on_host(size, [&](HostChannel& channel) {
    for (int round = 0; round < 4; ++round) {
      const int rank = channel.rank();
      const std::size_t own = count + static_cast<std::size_t>(rank);
      const Tensor input(own, Memory::mixed, rank + round);
      for (std::size_t i = 0; i < own; ++i) {
        input.data[i] = static_cast<float>(100000 * rank + 10 * round) + static_cast<float>(i);
      }
      std::vector<std::vector<float>> taken(static_cast<std::size_t>(size));
      HostPull pull(channel, small_policy(), bytes_of(input.data), own * sizeof(float),
                    std::vector<std::int64_t>(static_cast<std::size_t>(size), 10 * rank + round),
                    [&](const HostPull& self) {
                      std::vector<HostPull::Transfer> transfers;
                      for (int member = 0; member < self.size(); ++member) {
                        expect(self.number_of(member, self.rank()) == 10 * member + round,
                               "the number of a member");
                        auto& target = taken[static_cast<std::size_t>(member)];
                        target.resize(count + static_cast<std::size_t>(member));
                        if (target.size() > 1) {
                          transfers.push_back({member, sizeof(float), bytes_of(target.data() + 1),
                                               (target.size() - 1) * sizeof(float)});
                        }
                      }
                      return transfers;
                    });
      finish(pull);
      std::fill_n(input.data, own, -1.0F);
      for (int member = 0; member < size; ++member) {
        const auto& target = taken[static_cast<std::size_t>(member)];
        for (std::size_t i = 1; i < target.size(); ++i) {
          expect(
              target[i] == static_cast<float>(100000 * member + 10 * round) + static_cast<float>(i),
              "the data of another");
        }
      }
    }
  });
}

TEST_CASE("collectives of one channel queue up") {
  run_on_host(2, [&](HostChannel& channel) {
    std::vector<float> first(1000, 1);
    std::vector<float> second(3, 2);
    const Combination sum{.dtype = DataType::float32, .op = ReduceOp::sum};
    HostReduction one(channel, small_policy(), sum, 2,
                      {{bytes_of(first.data()), bytes_of(first.data()), 1000}});
    HostReduction two(channel, small_policy(), sum, 2,
                      {{bytes_of(second.data()), bytes_of(second.data()), 3}});
    expect(!two.advance(), "the second waits for its turn");
    finish(one);
    finish(two);
    expect(first[999] == 2 && second[2] == 4, "both sums");
    // The same object runs again.
    for (int round = 0; round < 5; ++round) {
      two.start();
      finish(two);
    }
    expect(second[0] == 128, "repeated sums");
  });
}

TEST_CASE("a collective on a channel is an operation: it says whom it awaits and counts each run") {
  std::atomic<int> asked{0};  // rounds in which rank 0 asked before rank 1 came
  run_on_host(2, [&](HostChannel& channel) {
    std::vector<float> data(100, 1);
    TransferCounters counters;
    HostReduction reduction(channel, small_policy(), {.dtype = DataType::float32}, 2,
                            {{bytes_of(data.data()), bytes_of(data.data()), 100}},
                            HostCollective::Begin::later);
    reduction.count_in(counters);
    Operation& operation = reduction;
    expect(!operation.uses_transport(), "shared memory wakes whoever waits");
    const Time limit = soon();
    for (int round = 1; round <= 3; ++round) {
      while (channel.rank() == 1 && asked < round) {
        expect(Clock::now() < limit, "rank 0 asks whom it awaits");
      }
      reduction.start();
      arrive(operation);
      if (channel.rank() == 0) {
        expect(operation.awaited() == std::vector<int>{1}, "the other rank");
        asked = round;
      }
      while (!operation.done()) {
        operation.advance();
        expect(Clock::now() < limit, "a collective that ends");
      }
      expect(operation.status().ok(), "a sum");
      expect(reduction.traffic().combined == 400, "what this run did");
      expect(counters.bytes_reduced.get() == 400 * round, "what all runs did");
    }
  });
}

TEST_CASE("a rank that gives up waits until nobody touches its tensor") {
  std::atomic<bool> working{false};
  std::atomic<bool> gone{false};
  run_on_host(2, [&](HostChannel& channel) {
    const Time limit = soon();
    std::vector<float> data(100000, 1);
    std::byte* const bytes = bytes_of(data.data());
    const Combination sum{.dtype = DataType::float32, .op = ReduceOp::sum};
    const std::vector<Piece> pieces{{bytes, bytes, 100000}};
    auto reduction = std::make_unique<HostReduction>(channel, small_policy(), sum, 2, pieces);
    arrive(*reduction);
    if (channel.rank() == 0) {
      while (!working) {
        expect(Clock::now() < limit, "another rank at work");
        std::this_thread::yield();
      }
      reduction.reset();
      gone = true;
      return;
    }
    while (reduction->traffic().combined == 0) {
      expect(Clock::now() < limit, "work");
      reduction->advance();
    }
    working = true;
    for (int look = 0; look < 50; ++look) {
      expect(!gone, "the other waits");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    while (reduction->advance()) continue;  // the remaining work
    while (!gone) {
      expect(Clock::now() < limit, "the other goes once the work is done");
      std::this_thread::yield();
    }
  });
}

TEST_CASE("a rank whose data others take waits for them, too, when it gives up") {
  std::atomic<bool> working{false};
  std::atomic<bool> gone{false};
  run_on_host(2, [&](HostChannel& channel) {
    const Time limit = soon();
    std::vector<float> data(100000, 1);
    std::vector<float> taken(100000);
    const std::size_t bytes = data.size() * sizeof(float);
    auto pull =
        std::make_unique<HostPull>(channel, small_policy(), bytes_of(data.data()), bytes,
                                   std::vector<std::int64_t>{}, [&](const HostPull& self) {
                                     return std::vector<HostPull::Transfer>{
                                         {1 - self.rank(), 0, bytes_of(taken.data()), bytes}};
                                   });
    arrive(*pull);
    if (channel.rank() == 0) {
      while (!working) {
        expect(Clock::now() < limit, "another rank at work");
        std::this_thread::yield();
      }
      pull.reset();
      gone = true;
      return;
    }
    while (pull->traffic().taken == 0) {
      expect(Clock::now() < limit, "work");
      pull->advance();
    }
    working = true;
    for (int look = 0; look < 50; ++look) {
      expect(!gone, "the other waits");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    while (pull->advance()) continue;
    expect(taken.back() == 1, "all of it");
    while (!gone) {
      expect(Clock::now() < limit, "the other goes once all is taken");
      std::this_thread::yield();
    }
  });
}

// Rank 1 only publishes where its tensors are; rank 0 cannot access one of them.
template <class Make>
void reach_what_cannot_be_reached(int input_protection, int output_protection, const Make& make) {
  constexpr std::size_t bytes = 16 << 10;
  std::atomic<bool> exposed{false};
  run_on_host(2, [&](HostChannel& channel) {
    if (!channel.host().has_direct_access()) return;
    void* const mapped =
        ::mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(mapped != MAP_FAILED, "memory");
    auto* const input = static_cast<std::byte*>(mapped);
    std::byte* const output = input + bytes;
    const Time limit = soon();
    if (channel.rank() == 1) {
      expect(::mprotect(input, bytes, input_protection) == 0, "protection");
      expect(::mprotect(output, bytes, output_protection) == 0, "protection");
    }
    while (channel.rank() == 0 && !exposed) {
      expect(Clock::now() < limit, "the other rank");
      std::this_thread::yield();
    }
    {
      const auto collective = make(channel, input, output, bytes);
      arrive(*collective);
      if (channel.rank() == 1) {
        exposed = true;
        while (!channel.has_stopped(0)) {
          expect(Clock::now() < limit, "the other rank gives up");
          std::this_thread::yield();
        }
      } else {
        for (int look = 0; look < 10'000 && !collective->done(); ++look) collective->advance();
        expect(!collective->status().ok(), "an error");
        expect(collective->status().peer() == 1, "that names the rank");
      }
    }
    ::munmap(mapped, 2 * bytes);
  });
}

TEST_CASE("a peer's memory that cannot be read or written is an error") {
  constexpr int all = PROT_READ | PROT_WRITE;
  const bool cannot_read = GENERATE(true, false);
  const std::size_t chunk = GENERATE(as<std::size_t>{}, 512, 8 << 10);  // claimed, or fixed shares
  const auto make = [&](HostChannel& channel, std::byte* input, std::byte* output,
                        std::size_t bytes) {
    HostPolicy policy = small_policy();
    policy.chunk = chunk;
    policy.huge_pages = false;
    return std::make_unique<HostReduction>(
        channel, policy, Combination{.dtype = DataType::float32, .op = ReduceOp::sum}, 2,
        std::vector<Piece>{{input, output, static_cast<std::int64_t>(bytes / sizeof(float))}});
  };
  reach_what_cannot_be_reached(cannot_read ? PROT_NONE : all, cannot_read ? all : PROT_READ, make);
}

TEST_CASE("a peer's data that cannot be taken is an error") {
  std::vector<std::byte> target(16 << 10);
  const auto make = [&](HostChannel& channel, std::byte* data, std::byte*, std::size_t bytes) {
    return std::make_unique<HostPull>(
        channel, small_policy(), data, bytes, std::vector<std::int64_t>{},
        [&target, bytes](const HostPull& self) {
          return std::vector<HostPull::Transfer>{{1 - self.rank(), 0, target.data(), bytes}};
        });
  };
  reach_what_cannot_be_reached(PROT_NONE, PROT_READ | PROT_WRITE, make);
}

}  // namespace rueda::test::onehost_test
