// What an operation costs the host through Rueda's C++ API, beside NCCL called directly: one rank,
// one thread that submits, waits for the handle and makes its stream wait. Prints a line for each,
// tab-separated, which benchmarks/gpu/measure.py reads:
//
//     <what>  <bytes>  <seconds of raw NCCL>  <seconds through Rueda>
//
// Seconds are medians of rounds that take turns. At one rank NCCL launches nothing for an allreduce
// in place; the all-to-all goes through its group and its launch.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "core/clock.h"
#include "core/options.h"
#include "cuda/device.h"
#include "cuda/driver.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "raw_nccl.h"
#include "rueda/rueda.h"

namespace rueda {
namespace {

constexpr int rounds = 15;
constexpr int warm_up_rounds = 3;
constexpr int calls_per_round = 50;

void drain(const CudaStream& stream) {
  check(stream.wait_until_idle(Clock::now() + std::chrono::seconds(60)));
}

double seconds_of_round(const CudaStream& stream, const std::function<void()>& call) {
  drain(stream);
  const Time begin = Clock::now();
  for (int number = 0; number < calls_per_round; ++number) call();
  const std::chrono::duration<double> taken = Clock::now() - begin;
  return taken.count() / calls_per_round;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void measure(const char* what, std::size_t bytes, const CudaStream& stream,
             const std::function<void()>& raw, const std::function<void()>& engine) {
  std::vector<double> of_raw;
  std::vector<double> of_engine;
  const std::int64_t calls = metrics().at("nccl_calls");
  for (int round = 0; round < rounds + warm_up_rounds; ++round) {
    const double first = seconds_of_round(stream, raw);
    const double second = seconds_of_round(stream, engine);
    if (round < warm_up_rounds) continue;
    of_raw.push_back(first);
    of_engine.push_back(second);
  }
  drain(stream);
  if (metrics().at("nccl_calls") == calls) {
    throw std::runtime_error("the engine did not call NCCL: nothing was compared");
  }
  std::printf("%s\t%zu\t%.9f\t%.9f\n", what, bytes, median(of_raw), median(of_engine));
  std::fflush(stdout);
}

void measure_all() {
  const CudaDriver* driver = take(load_cuda(take(read_options(process_environment(), {}))));
  const DeviceReference device = take(CudaDevice::open(*driver, 0));
  const CudaStream stream = take(CudaStream::create(device));
  for (const std::size_t bytes :
       {std::size_t{4} << 10, std::size_t{1} << 20, std::size_t{25} << 20}) {
    const auto from = take(DeviceMemory::allocate(device, bytes));
    const auto to = take(DeviceMemory::allocate(device, bytes));
    check(fill_bytes(stream, from.data(), std::byte{}, bytes));
    check(fill_bytes(stream, to.data(), std::byte{}, bytes));
    const auto count = static_cast<std::int64_t>(bytes / 4);
    const TensorView tensor{from.data(), {count}, DataType::float32, 0, stream.handle()};
    const raw_nccl::OneRank nccl;
    measure(
        "allreduce", bytes, stream,
        [&] { nccl.allreduce(from.data(), bytes / 4, stream.handle()); },
        [&] {
          const Handle handle =
              allreduce(tensor, from.data(), {.name = "tensor", .op = ReduceOp::sum});
          handle.wait();
          handle.wait_on(stream.handle());
        });
    measure(
        "all-to-all", bytes, stream,
        [&] { nccl.alltoall(from.data(), to.data(), bytes / 4, stream.handle()); },
        [&] {
          const Handle handle =
              alltoall(tensor, {}, {.name = "rows", .result = {to.data(), bytes}});
          handle.wait();
          handle.wait_on(stream.handle());
        });
  }
}

}  // namespace
}  // namespace rueda

int main() {
  try {
    rueda::init();
    rueda::measure_all();
    rueda::shutdown();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "nccl_overhead: %s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
