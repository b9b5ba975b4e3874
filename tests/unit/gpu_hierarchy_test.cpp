// All-reductions of tensors of GPUs on several hosts, by NCCL within each and the ring across.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "backend/gpu/gpu_card.h"
#include "backend/gpu/hierarchy.h"
#include "gpu_persistent_runs.h"

namespace rueda::test::gpu_hierarchy_test {
namespace {

using Hosts = std::vector<int>;

GpuWorld world_of(const Hosts& host_of) {
  GpuWorld world{static_cast<int>(host_of.size()), Gpus::own, Sharing::nothing};
  world.options.gpu_backend = "hierarchical";
  world.host_of = host_of;
  return world;
}

std::vector<Hosts> layouts() {
  return {{0, 1}, {0, 0, 1}, {0, 1, 1}, {0, 0, 1, 1}, {0, 1, 0, 1}, {1, 0, 0, 0}, {0, 1, 2, 2}};
}

std::string text_of(const Hosts& host_of) {
  std::string text;
  for (const int host : host_of) text += std::to_string(host);
  return text;
}

GpuCard card_of(const std::string& gpu) {
  GpuCard card;
  card.has_gpu = card.has_nccl = true;
  card.nccl_version = 22800;
  write_text(card.host, "a machine");
  write_text(card.gpu, gpu);
  return card;
}

}  // namespace

TEST_CASE("each slice is carried by one rank of each host") {
  std::mt19937 random(static_cast<unsigned>(GENERATE(range(0, 40))));
  const int world = std::uniform_int_distribution(1, 12)(random);
  Hosts host_of;
  for (int rank = 0; rank < world; ++rank) {
    host_of.push_back(std::uniform_int_distribution(0, 3)(random));
  }
  std::vector<int> members(static_cast<std::size_t>(world));
  std::iota(members.begin(), members.end(), 0);
  std::shuffle(members.begin(), members.end(), random);
  members.resize(std::uniform_int_distribution<std::size_t>(1, members.size())(random));

  std::map<int, int> sizes;
  for (const int member : members) ++sizes[host_of[static_cast<std::size_t>(member)]];
  const auto smallest = std::min_element(sizes.begin(), sizes.end(),
                                         [](auto& a, auto& b) { return a.second < b.second; });
  std::map<int, std::vector<int>> carriers;  // by slice: what its first carrier sees
  for (int rank = 0; rank < static_cast<int>(members.size()); ++rank) {
    const Hierarchy seen = hierarchy_of(members, rank, host_of);
    const auto host = [&](int of) {
      return host_of[static_cast<std::size_t>(members[static_cast<std::size_t>(of)])];
    };
    REQUIRE(static_cast<int>(seen.local.size()) == sizes.at(host(rank)));
    for (const int other : seen.local) REQUIRE(host(other) == host(rank));
    REQUIRE(seen.local[static_cast<std::size_t>(seen.local_rank)] == rank);
    REQUIRE(seen.slices == smallest->second);
    REQUIRE(seen.carries_slice() == (seen.local_rank < seen.slices));
    if (!seen.carries_slice()) {
      REQUIRE(seen.across.empty());
      continue;
    }
    REQUIRE(seen.across[static_cast<std::size_t>(seen.across_rank)] == rank);
    std::set<int> hosts;
    for (const int other : seen.across) hosts.insert(host(other));
    REQUIRE(hosts.size() == sizes.size());
    REQUIRE(seen.across.size() == sizes.size());
    const auto [first, is_new] = carriers.try_emplace(seen.local_rank, seen.across);
    REQUIRE(first->second == seen.across);
  }
  REQUIRE(static_cast<int>(carriers.size()) == smallest->second);
}

TEST_CASE("NCCL is asked for within a host only, and alone where there is one host") {
  const std::vector<int> members{0, 1, 2, 3};
  const Hosts two{0, 0, 1, 1};
  std::vector<GpuCard> cards{card_of("a"), card_of("b"), card_of("a"), card_of("b")};
  cards[2].nccl_version = cards[3].nccl_version = 22700;
  auto choice = choose_road(cards, members, two, "hierarchical", true);
  REQUIRE(choice.ok());
  CHECK(choice->road == GpuRoad::hierarchical);
  CHECK(choice->why_not_nccl == "RUEDA_GPU_BACKEND=hierarchical");
  CHECK(choose_road(cards, members, two, "auto", true)->road == GpuRoad::staged);

  cards[3].nccl_version = 22800;
  const auto versions = choose_road(cards, members, two, "hierarchical", true);
  CHECK(contains(versions.status().to_string(), "rank 2 has NCCL 22700"));
  CHECK(contains(versions.status().to_string(), "RUEDA_GPU_BACKEND=hierarchical"));
  cards[3] = card_of("a");
  cards[2] = card_of("a");
  const auto shared = choose_road(cards, members, two, "hierarchical", true);
  CHECK(contains(shared.status().to_string(), "ranks 2 and 3 share the GPU a"));

  cards = {card_of("a"), card_of("b"), card_of("c"), card_of("d")};
  auto one_host = choose_road(cards, members, {5, 5, 5, 5}, "hierarchical", true);
  CHECK(one_host->road == GpuRoad::nccl);
  CHECK(one_host->why_not_nccl.empty());
}

TEST_CASE("hosts of any sizes reduce to the same bits as one sum") {
  const NcclFixture fixture({.polls_in_progress = 2}, 7);
  const Hosts host_of = GENERATE(from_range(layouts()));
  INFO(text_of(host_of));
  const int size = static_cast<int>(host_of.size());
  run_gpu_engines(world_of(host_of), [&](GpuEngine& gpu) {
    for (int round = 0; round < 2; ++round) {
      const std::vector<std::size_t> counts{0, 1, 127, 1000, 4097, 300001};
      std::vector<DeviceMemory> memory;
      std::vector<Handle> handles;
      for (const std::size_t elements : counts) {
        memory.push_back(gpu.tensor(filled<float>(elements, gpu.rank())));
        handles.push_back(gpu.submit(gpu.allreduce(memory.back(), elements, DataType::float32,
                                                   "float." + std::to_string(elements))));
      }
      const DeviceMemory largest = gpu.tensor(filled<std::int64_t>(333, gpu.rank()));
      handles.push_back(
          gpu.submit(gpu.allreduce(largest, 333, DataType::int64, "int64", ReduceOp::max)));
      const DeviceMemory whole = gpu.tensor(std::vector<std::int32_t>(77, gpu.rank() - 5));
      handles.push_back(
          gpu.submit(gpu.allreduce(whole, 77, DataType::int32, "int32", ReduceOp::average)));
      const DeviceMemory scaled = gpu.tensor(filled<double>(501, gpu.rank()));
      Submission with_factors =
          gpu.allreduce(scaled, 501, DataType::float64, "scaled", ReduceOp::average);
      with_factors.request.prescale = 0.5;
      with_factors.request.postscale = 4;
      handles.push_back(gpu.submit(std::move(with_factors)));
      for (const Handle& handle : handles) gpu.finish(handle);

      for (std::size_t i = 0; i < counts.size(); ++i) {
        expect(gpu.read<float>(memory[i].data(), counts[i]) == summed<float>(counts[i], size),
               "the sum of " + std::to_string(counts[i]));
      }
      expect(gpu.read<std::int64_t>(largest.data(), 333) == filled<std::int64_t>(333, size - 1),
             "the largest");
      const int total = size * (size - 1) / 2 - 5 * size;  // negative, and rounded down
      const auto average = static_cast<std::int32_t>(std::floor(static_cast<double>(total) / size));
      expect(gpu.read<std::int32_t>(whole.data(), 77) == std::vector<std::int32_t>(77, average),
             "the average of integers");
      const auto sum = summed<double>(501, size);
      const auto result = gpu.read<double>(scaled.data(), 501);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        expect(std::abs(result[i] - sum[i] / size * 2) < 1e-12, "scaled");
      }
    }
    gpu.drain();
  });
}

TEST_CASE("only a slice of each rank crosses to other hosts, and that narrowed") {
  const NcclFixture fixture;
  const bool narrows = GENERATE(false, true);
  constexpr std::size_t elements = 256 * 1024;  // two slices without padding
  run_gpu_engines(world_of({0, 0, 1, 1}), [&](GpuEngine& gpu) {
    const DeviceMemory memory =
        gpu.tensor(std::vector<float>(elements, 1.5F + static_cast<float>(gpu.rank())));
    gpu.finish(gpu.submit(gpu.allreduce(memory, elements, DataType::float32, "first")));
    const DeviceMemory second =
        gpu.tensor(std::vector<float>(elements, 1.5F + static_cast<float>(gpu.rank())));
    const auto before = gpu.engine.metrics();
    Submission submission =
        gpu.allreduce(second, elements, DataType::float32, "second", ReduceOp::average);
    if (narrows) submission.request.wire = DataType::bfloat16;
    submission.request.prescale = 2;
    submission.request.postscale = 8;
    gpu.finish(gpu.submit(std::move(submission)));
    expect(gpu.read<float>(second.data(), elements) == std::vector<float>(elements, 48.0F),
           "the average");
    auto metrics = gpu.engine.metrics();
    const auto moved = [&](const std::string& name) { return metrics.at(name) - before.at(name); };
    const std::int64_t slice = elements / 2 * (narrows ? 2 : 4);
    expect(moved("nccl_calls") == 2, "a reduce-scatter and an all-gather");
    expect(moved("bytes_staged") == 2 * slice, "a slice to the host and back");
    // A ring of two hosts: half of the slice in each of two steps. And word to the other GPU here.
    expect(moved("allreduce_payload_bytes_sent") == slice + 1, "a slice to the other host");
    expect(moved("gpu_launches") == (narrows ? 4 : 2), "launches");
    gpu.drain();
  });
}

TEST_CASE("what is larger than a part goes part by part, and what is empty not at all") {
  const NcclFixture fixture;
  const Hosts host_of = GENERATE(Hosts{0, 1}, Hosts{0, 0, 1});
  GpuWorld world = world_of(host_of);
  const int size = world.size;
  world.options.fusion_threshold = 1 << 20;
  run_gpu_engines(world, [&](GpuEngine& gpu) {
    const DeviceMemory nothing = gpu.tensor(std::vector<float>());
    gpu.finish(gpu.submit(gpu.allreduce(nothing, 0, DataType::float32, "nothing")));
    const std::size_t elements = 600000;  // of float32: two whole parts, and a rest
    const DeviceMemory memory = gpu.tensor(filled<float>(elements, gpu.rank()));
    Submission submission = gpu.allreduce(memory, elements, DataType::float32, "large");
    submission.request.wire = DataType::float16;
    gpu.finish(gpu.submit(std::move(submission)));
    expect(gpu.read<float>(memory.data(), elements) == summed<float>(elements, size), "the sum");
    expect(gpu.engine.metrics().at("nccl_calls") == 6, "two calls for each part");
    gpu.drain();
  });
}

TEST_CASE("a slice may have more chunks than there are slots for them") {
  const NcclFixture fixture({}, 5);
  run_gpu_engines(world_of({0, 1}), [&](GpuEngine& gpu) {
    constexpr std::size_t elements = 6000000;
    const DeviceMemory memory = gpu.tensor(filled<float>(elements, gpu.rank()));
    gpu.finish(gpu.submit(gpu.allreduce(memory, elements, DataType::float32, "x")));
    expect(gpu.read<float>(memory.data(), elements) == summed<float>(elements, 2), "the sum");
    gpu.drain();
  });
}

TEST_CASE("16-bit tensors, products, and a narrow way across between hosts of unequal sizes") {
  const NcclFixture fixture;
  run_gpu_engines(world_of({0, 0, 1}), [&](GpuEngine& gpu) {
    const DeviceMemory half = gpu.tensor(std::vector<std::uint16_t>(333, 0x3E00));  // 1.5
    const DeviceMemory factors =
        gpu.tensor(std::vector<double>(10, static_cast<double>(gpu.rank() + 1)));
    const DeviceMemory wide = gpu.tensor(std::vector<double>(500, 0.25 * (gpu.rank() + 1)));
    const Handle one = gpu.submit(gpu.allreduce(half, 333, DataType::float16, "half"));
    const Handle two =
        gpu.submit(gpu.allreduce(factors, 10, DataType::float64, "product", ReduceOp::product));
    Submission narrowed = gpu.allreduce(wide, 500, DataType::float64, "narrow");
    narrowed.request.wire = DataType::bfloat16;
    narrowed.request.postscale = 2;
    const Handle three = gpu.submit(std::move(narrowed));
    for (const Handle& handle : {one, two, three}) gpu.finish(handle);
    expect(gpu.read<std::uint16_t>(half.data(), 333) == std::vector<std::uint16_t>(333, 0x4480),
           "4.5");
    expect(gpu.read<double>(factors.data(), 10) == std::vector<double>(10, 6), "3!");
    expect(gpu.read<double>(wide.data(), 500) == std::vector<double>(500, 3), "twice 1.5");
    gpu.drain();
  });
}

TEST_CASE("without the kernels what is narrowed is staged, and the rest is not") {
  const NcclFixture fixture({}, 0, false);
  run_gpu_engines(world_of({0, 0, 1, 1}), [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(filled<float>(1000, gpu.rank()));
    gpu.finish(gpu.submit(gpu.allreduce(memory, 1000, DataType::float32, "x")));
    expect(gpu.read<float>(memory.data(), 1000) == summed<float>(1000, 4), "the sum");
    expect(gpu.engine.metrics().at("nccl_calls") == 2, "by NCCL");
    const DeviceMemory other = gpu.tensor(filled<float>(1000, gpu.rank()));
    Submission narrowed = gpu.allreduce(other, 1000, DataType::float32, "narrow");
    narrowed.request.wire = DataType::bfloat16;
    gpu.finish(gpu.submit(std::move(narrowed)));
    expect(gpu.read<float>(other.data(), 1000) == summed<float>(1000, 4), "the other sum");
    expect(gpu.engine.metrics().at("nccl_calls") == 2, "not by NCCL");
    gpu.drain();
  });
}

TEST_CASE("no GPU waits for the slices of its host while they cross the network") {
  const NcclFixture fixture;
  const auto released = std::make_shared<std::atomic<bool>>(false);
  run_gpu_engines(world_of({0, 0, 1}), [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(filled<float>(1000, gpu.rank()));
    gpu.drain();
    const std::shared_ptr<void> release(nullptr, [released](void*) { *released = true; });
    if (gpu.rank() == 2) {  // its host's sum is not ready
      cuda_double().enqueue(gpu.stream().handle(), [released] {
        while (!*released) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      });
    }
    const Handle handle = gpu.submit(gpu.allreduce(memory, 1000, DataType::float32, "x"));
    const auto calls = [&] { return gpu.engine.metrics().at("nccl_calls"); };
    const Time end = soon();
    while (calls() == 0 && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    expect(calls() == 1, "nothing is gathered yet");
    meet(gpu, "looked");
    *released = true;
    gpu.finish(handle);
    expect(calls() == 2, "it is now");
    expect(gpu.read<float>(memory.data(), 1000) == summed<float>(1000, 3), "the sum");
    gpu.drain();
  });
}

TEST_CASE("across hosts a persistent allreduce is an operation of the engine, not for graphs") {
  const NcclFixture fixture;
  run_gpu_engines(world_of({0, 0, 1}), [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(count, 0));
    const Run operation = persistent(gpu, memory, {.name = "x"});
    for (int round = 0; round < 3; ++round) {
      write(gpu, memory, static_cast<float>(gpu.rank() + 1));
      run(*operation);
      expect_all(gpu, memory.data(), 2, "the average");
      gpu.drain();
      cuda_double().begin_capture(gpu.stream().handle());
      const std::string error = error_of([&] { operation->start(std::nullopt); });
      cuda_double().end_capture(gpu.stream().handle());
      expect(contains(error, "RUEDA_GPU_BACKEND=hierarchical"), error);
      meet(gpu, "after the refusal");
    }
    expect(gpu.engine.metrics().at("nccl_calls") == 6, "by NCCL and across");
    gpu.drain();
  });
}

TEST_CASE("on the hierarchical road the other collectives are staged") {
  const NcclFixture fixture;
  run_gpu_engines(world_of({0, 0, 1}), [&](GpuEngine& gpu) {
    const DeviceMemory own = gpu.tensor(std::vector<float>(5, static_cast<float>(gpu.rank())));
    const Handle gathered =
        gpu.submit(gpu.submission(Collective::allgather, own, {5}, DataType::float32, "g"));
    gpu.finish(gathered);
    const auto all = gpu.read<float>(gathered.output().data.get(), 15);
    for (std::size_t i = 0; i < 15; ++i) expect(all[i] == static_cast<float>(i / 5), "gathered");
    Submission broadcast = gpu.submission(Collective::broadcast, own, {5}, DataType::float32, "b");
    broadcast.request.root = 2;
    gpu.finish(gpu.submit(std::move(broadcast)));
    expect(gpu.read<float>(own.data(), 5) == std::vector<float>(5, 2), "sent");
    expect(gpu.engine.metrics().at("nccl_calls") == 0, "no call of NCCL");
    gpu.drain();
  });
}

TEST_CASE("a rank that has joined carries its slice, if it has one, of zeros") {
  const NcclFixture fixture;
  const ReduceOp op = GENERATE(ReduceOp::sum, ReduceOp::average, ReduceOp::min);
  const Hosts host_of = GENERATE(Hosts{0, 0, 1, 1}, Hosts{0, 0, 0, 1});
  run_gpu_engines(world_of(host_of), [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(640, 3.0F));
    gpu.finish(gpu.submit(gpu.allreduce(memory, 640, DataType::float32, "all")));
    const DeviceMemory rest = gpu.tensor(std::vector<float>(640, 2.0F));
    if (gpu.rank() != 1) {
      gpu.finish(gpu.submit(gpu.allreduce(rest, 640, DataType::float32, "rest", op)));
      expect(gpu.read<float>(rest.data(), 640) ==
                 std::vector<float>(640, op == ReduceOp::sum ? 6.0F : 2.0F),
             "of three");
    }
    test::finish(gpu.engine.join(0));
    gpu.drain();
  });
}

TEST_CASE("process sets have hierarchies of their own") {
  const NcclFixture fixture;
  run_gpu_engines(world_of({0, 0, 1, 1}), [&](GpuEngine& gpu) {
    const int across = change(gpu.engine, Collective::add_process_set, {0, 1, 3});
    const int within = change(gpu.engine, Collective::add_process_set, {2, 3});
    for (int round = 0; round < 5; ++round) {
      const DeviceMemory one = gpu.tensor(filled<float>(3000, gpu.rank()));
      const DeviceMemory two = gpu.tensor(filled<float>(3000, gpu.rank()));
      std::vector<Handle> handles;
      if (gpu.rank() != 2) {
        handles.push_back(test::submit(
            gpu.engine, gpu.allreduce(one, 3000, DataType::float32, "a", ReduceOp::max), across));
      }
      if (gpu.rank() >= 2) {
        handles.push_back(test::submit(
            gpu.engine, gpu.allreduce(two, 3000, DataType::float32, "w", ReduceOp::min), within));
      }
      for (const Handle& handle : handles) gpu.finish(handle);
      if (gpu.rank() != 2) {
        expect(gpu.read<float>(one.data(), 3000) == filled<float>(3000, 3), "across");
      }
      if (gpu.rank() >= 2) {
        expect(gpu.read<float>(two.data(), 3000) == filled<float>(3000, 2), "within");
      }
      gpu.drain();
    }
    change(gpu.engine, Collective::remove_process_set, {across});
    change(gpu.engine, Collective::remove_process_set, {within});
  });
}

TEST_CASE("what NCCL says on one host reaches the ranks of all") {
  const NcclFixture fixture;
  const std::string function =
      GENERATE("ncclReduceScatter", "ncclAllGather", "ncclReduce", "ncclBroadcast");
  const bool even = function == "ncclReduceScatter" || function == "ncclAllGather";
  nccl_double().fail(function, 1, 2, nccl::system_error, "the link has gone");
  std::vector<DeviceMemory> tensors(4);  // the GPU may be at work until the engines have ended
  run_gpu_engines(world_of(even ? Hosts{0, 0, 1, 1} : Hosts{0, 0, 0, 1}), [&](GpuEngine& gpu) {
    expect_link_error(gpu, tensors[static_cast<std::size_t>(gpu.rank())], 1000);
  });
}

TEST_CASE("a host that hangs is given up, and who is waited for is told") {
  const NcclFixture fixture;
  nccl_double().hang(1);
  GpuWorld world = world_of({0, 0, 1, 1});
  world.options.transfer_timeout = 0.5;
  std::vector<DeviceMemory> tensors(4);
  run_gpu_engines(world, [&](GpuEngine& gpu) {
    DeviceMemory& memory = tensors[static_cast<std::size_t>(gpu.rank())];
    memory = gpu.tensor(std::vector<float>(1000, 1));
    std::string error = "none";
    const Time end = soon();
    while (error == "none" && Clock::now() < end) {
      error = gpu.error_of(gpu.submit(gpu.allreduce(memory, 1000, DataType::float32, "x")));
    }
    expect(contains(error, "RUEDA_TRANSFER_TIMEOUT") || contains(error, "waiting for rank") ||
               contains(error, "waiting for the rank"),
           error);
    gpu.drain();
  });
}

}  // namespace rueda::test::gpu_hierarchy_test
