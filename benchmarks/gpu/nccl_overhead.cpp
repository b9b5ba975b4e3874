// What an operation costs the host through Rueda's C++ API, beside NCCL called directly: one rank,
// one thread that submits, waits for the handle and makes its stream wait. Prints a line for each,
// tab-separated, which benchmarks/gpu/measure.py reads:
//
//     <what>  <bytes>  <seconds of raw NCCL>  <seconds through Rueda>
//
// Seconds are medians of rounds that take turns. At one rank NCCL launches nothing for an allreduce
// in place; the all-to-all goes through its group and its launch. With the argument launch-thread,
// an all-to-all of one rank in three ways, where a communicator that does not block makes NCCL
// start a thread for each:
//
//     all-to-all  <bytes>  <seconds, blocking>  <seconds, non-blocking>  <seconds through Rueda>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
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

using Call = std::function<void()>;

// `calls`: the last one is Rueda's.
void measure(const char* what, std::size_t bytes, const CudaStream& stream,
             const std::vector<Call>& calls) {
  std::vector<std::vector<double>> seconds(calls.size());
  const std::int64_t before = metrics().at("nccl_calls");
  for (int round = 0; round < rounds + warm_up_rounds; ++round) {
    for (std::size_t way = 0; way < calls.size(); ++way) {
      const double taken = seconds_of_round(stream, calls[way]);
      if (round >= warm_up_rounds) seconds[way].push_back(taken);
    }
  }
  drain(stream);
  if (metrics().at("nccl_calls") == before) {
    throw std::runtime_error("the engine did not call NCCL: nothing was compared");
  }
  std::printf("%s\t%zu", what, bytes);
  for (const auto& of_way : seconds) std::printf("\t%.9f", median(of_way));
  std::printf("\n");
  std::fflush(stdout);
}

// A tensor on the GPU, and room for as much.
struct Tensors {
  Tensors(const DeviceReference& device, const CudaStream& its_stream, std::size_t its_bytes)
      : stream(its_stream),
        bytes(its_bytes),
        from(take(DeviceMemory::allocate(device, bytes))),
        to(take(DeviceMemory::allocate(device, bytes))) {
    check(fill_bytes(stream, from.data(), std::byte{}, bytes));
    check(fill_bytes(stream, to.data(), std::byte{}, bytes));
  }

  [[nodiscard]] TensorView view() const {
    const auto count = static_cast<std::int64_t>(bytes / 4);
    return {from.data(), {count}, DataType::float32, 0, stream.handle()};
  }
  [[nodiscard]] Call allreduce_by(const raw_nccl::OneRank& nccl) const {
    return [&] { nccl.allreduce(from.data(), bytes / 4, stream.handle()); };
  }
  [[nodiscard]] Call alltoall_by(const raw_nccl::OneRank& nccl) const {
    return [&] { nccl.alltoall(from.data(), to.data(), bytes / 4, stream.handle()); };
  }
  void allreduce() const {
    const Handle handle =
        rueda::allreduce(view(), from.data(), {.name = "tensor", .op = ReduceOp::sum});
    handle.wait();
    handle.wait_on(stream.handle());
  }
  void alltoall() const {
    const Handle handle =
        rueda::alltoall(view(), {}, {.name = "rows", .result = {to.data(), bytes}});
    handle.wait();
    handle.wait_on(stream.handle());
  }

  const CudaStream& stream;
  const std::size_t bytes;
  const DeviceMemory from;
  const DeviceMemory to;
};

void measure_all(bool launch_thread) {
  const CudaDriver* driver = take(load_cuda(take(read_options(process_environment(), {}))));
  const DeviceReference device = take(CudaDevice::open(*driver, 0));
  const CudaStream stream = take(CudaStream::create(device));
  for (const std::size_t bytes :
       {std::size_t{4} << 10, std::size_t{1} << 20, std::size_t{25} << 20}) {
    if (launch_thread && bytes > std::size_t{1} << 20) continue;  // the price does not depend on it
    const Tensors tensors(device, stream, bytes);
    const raw_nccl::OneRank nccl;
    if (launch_thread) {
      const raw_nccl::OneRank other(false);
      measure("all-to-all", bytes, stream,
              {tensors.alltoall_by(nccl), tensors.alltoall_by(other), [&] { tensors.alltoall(); }});
      continue;
    }
    measure("allreduce", bytes, stream, {tensors.allreduce_by(nccl), [&] { tensors.allreduce(); }});
    measure("all-to-all", bytes, stream, {tensors.alltoall_by(nccl), [&] { tensors.alltoall(); }});
  }
}

}  // namespace
}  // namespace rueda

int main(int count, char** arguments) {
  try {
    rueda::init();
    rueda::measure_all(count > 1 && std::string_view(arguments[1]) == "launch-thread");
    rueda::shutdown();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "nccl_overhead: %s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
