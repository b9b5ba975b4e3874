// Persistent allreduces between real processes: through shared memory by default, over the ring if
// MPI or the ring is selected.
#include <rueda/persistent.h>
#include <rueda/rueda.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "ranks/rank_main.h"
#include "unit/seccomp_filter.h"

using namespace rueda;
using namespace rueda::test;

namespace {

std::shared_ptr<std::byte[]> memory(bool registered, std::size_t bytes) {
  if (registered) return allocate(bytes);
  return {static_cast<std::byte*>(std::malloc(bytes + 1)),
          [](std::byte* data) { std::free(data); }};
}

// Whole numbers, so that sums and averages of P ranks are exact.
float value(int rank, int round, std::size_t i) {
  return static_cast<float>((static_cast<int>(i % 100) + round) * size() + rank);
}

void sums(std::size_t count, bool registered, ReduceOp op) {
  const auto owner = memory(registered, count * sizeof(float));
  auto* data = reinterpret_cast<float*>(owner.get());
  Allreduce operation({data, {static_cast<std::int64_t>(count)}, DataType::float32}, {.op = op});
  const int ranks = size();
  for (int round = 0; round < 5; ++round) {
    for (std::size_t i = 0; i < count; ++i) data[i] = value(rank(), round, i);
    operation.start();
    if (round % 2 == 0) {
      operation.wait();
    } else {
      const Time deadline = soon();
      while (!operation.done()) expect(Clock::now() < deadline, "a run that ends");
    }
    for (std::size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int other = 0; other < ranks; ++other) sum += value(other, round, i);
      if (op == ReduceOp::average) sum /= static_cast<float>(ranks);
      expect(data[i] == sum, "element " + std::to_string(i) + " of " + std::to_string(count));
    }
    // The result belongs to this rank: others never see what is written to it now.
    std::fill_n(data, count, -1.0F - static_cast<float>(rank()));
    expect(operation.done(), "a run that stays over");
    barrier().wait();
    for (std::size_t i = 0; i < count; ++i) {
      expect(data[i] == -1.0F - static_cast<float>(rank()), "a result that is nobody else's");
    }
  }
}

void refuses_what_differs() {
  std::vector<float> data(static_cast<std::size_t>(10 + rank()));
  const auto count = static_cast<std::int64_t>(data.size());
  bool refused = size() == 1;
  try {
    Allreduce operation({data.data(), {count}, DataType::float32}, {.name = "uneven"});
  } catch (const MismatchError& error) {
    const std::string text = error.what();
    refused = text.find("uneven") != std::string::npos && text.find("[10]") != std::string::npos;
  }
  expect(refused, "a mismatch of shapes is an error on every rank");
}

void refuses_a_second_start() {
  float one = 1;
  Allreduce operation({&one, {1}, DataType::float32}, {.name = "twice"});
  operation.start();
  bool refused = false;
  try {
    operation.start();
  } catch (const InvalidArgumentError&) {
    refused = true;
  }
  operation.wait();
  expect(refused, "a second start before the wait is refused, however quick the others are");
}

std::int64_t occurrences(const std::string& text, const std::string& part) {
  std::int64_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Each run counts like an allreduce by name and is a bar of the timeline.
void is_counted_and_drawn() {
  constexpr int runs = 4;
  constexpr std::int64_t bytes = 2000 * sizeof(float);
  const std::string path =
      (std::filesystem::temp_directory_path() / str("rueda_runs_", ::getpid(), "_%r")).string();
  auto before = metrics();
  {
    std::vector<float> data(2000, 1);
    Allreduce operation({data.data(), {2000}, DataType::float32}, {.name = "seen"});
    before = metrics();
    start_timeline(path);
    for (int run = 0; run < runs; ++run) {
      operation.start();
      operation.wait();
      expect(operation.done(), "a run that counts once");
    }
    stop_timeline();
    expect(metrics().at("allreduce_batches") - before.at("allreduce_batches") == runs, "at once");
  }
  auto counted = metrics();
  for (const auto& [name, count] : before) counted[name] -= count;
  expect(counted["tensors_submitted"] == runs, "runs that were submitted");
  expect(counted["tensors_completed"] == runs, "runs that have ended");
  expect(counted["tensors_failed"] == 0, "none that failed");
  expect(counted["allreduce_tensors"] == runs, "tensors");
  expect(counted["allreduce_tensor_bytes"] == runs * bytes, "their bytes");
  expect(counted["allreduce_batches"] == runs, "batches");
  if (size() > 1) expect(counted["allreduce_bytes_reduced"] > 0, "work");

  const std::string name = str(path.substr(0, path.size() - 2), rank());
  std::ostringstream text;
  text << std::ifstream(name).rdbuf();
  std::filesystem::remove(name);
  expect(occurrences(text.str(), "\"name\":\"seen\"") == 1, "a row of its own");
  expect(occurrences(text.str(), "\"name\":\"ALLREDUCE\"") == runs, "a bar for each run");
}

// On a process set of its own, concurrently with one of the world.
void works_in_a_process_set() {
  if (size() < 2) return;
  std::vector<int> ranks(static_cast<std::size_t>(size() - 1));
  std::iota(ranks.begin(), ranks.end(), 1);
  const ProcessSet set = add_process_set(ranks);
  std::vector<double> all(5000, 1);
  Allreduce of_all({all.data(), {5000}, DataType::float64}, {.op = ReduceOp::sum});
  of_all.start();
  if (rank() > 0) {
    std::vector<double> some(3, 1);
    Allreduce of_some({some.data(), {3}, DataType::float64},
                      {.op = ReduceOp::sum, .process_set = set});
    of_some.start();
    of_some.wait();
    expect(some[2] == size() - 1, "the sum of the set");
  }
  of_all.wait();
  expect(all[4999] == size(), "the sum of the world");
}

}  // namespace

// With the argument "forbid" the kernel denies ranks access to each other's memory.
int main(int argc, char** argv) {
  return rank_main([&] {
    if (argc > 1 && std::string(argv[1]) == "forbid") {
      forbid({SYS_process_vm_readv, SYS_process_vm_writev}, EPERM);
    }
    init();
    for (const bool registered : {false, true}) {
      for (const std::size_t count : {0, 1, 14, 15, 500, 4096, 20000, 131072, 300001}) {
        sums(count, registered, ReduceOp::sum);
      }
      sums(1000, registered, ReduceOp::average);
    }
    refuses_what_differs();
    refuses_a_second_start();
    works_in_a_process_set();
    is_counted_and_drawn();
    shutdown();
  });
}
