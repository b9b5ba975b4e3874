// Rates of the kernels that pack, unpack, cast and scale batches of 161 tensors, beside the rate of
// the driver's own copies within the GPU. Prints a line for each, tab-separated, which
// benchmarks/gpu/measure.py reads:
//
//     <tensors>  <what>  <bytes moved>  <seconds>
//
// Bytes moved are those read and those written; seconds are the median of the rounds.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "core/clock.h"
#include "core/options.h"
#include "cuda/batch_kernels.h"
#include "cuda/device.h"
#include "cuda/driver.h"
#include "cuda/memory.h"
#include "cuda/stream.h"

namespace rueda {
namespace {

constexpr int rounds = 15;
constexpr int warm_up_rounds = 3;
constexpr int launches_per_round = 20;
constexpr std::size_t tensors = 161;

struct Gpu {
  DeviceReference device;
  CudaStream stream;
  BatchKernels kernels;
};

struct TensorSet {
  std::string name;
  std::vector<std::size_t> elements;
};

// The gradients of ResNet-50, layer by layer.
TensorSet resnet50() {
  TensorSet set{"161, ResNet-50's", {}};
  const auto convolution = [&](std::size_t weights, std::size_t channels) {
    set.elements.insert(set.elements.end(), {weights, channels, channels});  // and its batch norm
  };
  convolution(std::size_t{3} * 64 * 7 * 7, 64);
  std::size_t from = 64;
  std::size_t width = 64;
  for (const int blocks : {3, 4, 6, 3}) {
    for (int block = 0; block < blocks; ++block) {
      convolution(from * width, width);
      convolution(9 * width * width, width);
      convolution(width * 4 * width, 4 * width);
      if (block == 0) convolution(from * 4 * width, 4 * width);
      from = 4 * width;
    }
    width *= 2;
  }
  set.elements.insert(set.elements.end(), {from * 1000, std::size_t{1000}});
  return set;
}

// Each length occurs in turn, from one element to 64 MiB.
TensorSet widely_mixed() {
  TensorSet set{"161 of 4 B to 64 MiB", {}};
  while (set.elements.size() < tensors)
    set.elements.push_back((std::size_t{1} << (set.elements.size() % 25)) +
                           (set.elements.size() % 25 < 24 ? set.elements.size() % 3 : 0));
  return set;
}

std::size_t aligned(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// Seconds that one call takes the GPU: enough are enqueued for the host's own time to be hidden.
double seconds_of(const Gpu& gpu, const std::function<void()>& enqueue) {
  std::vector<double> seconds;
  for (int round = 0; round < rounds + warm_up_rounds; ++round) {
    check(gpu.stream.wait_until_idle(Clock::now() + std::chrono::seconds(60)));
    const Time begin = Clock::now();
    for (int launch = 0; launch < launches_per_round; ++launch) enqueue();
    check(gpu.stream.wait_until_idle(begin + std::chrono::seconds(60)));
    const std::chrono::duration<double> taken = Clock::now() - begin;
    if (round >= warm_up_rounds) seconds.push_back(taken.count() / launches_per_round);
  }
  std::nth_element(seconds.begin(), seconds.begin() + rounds / 2, seconds.end());
  return seconds[rounds / 2];
}

void print(const TensorSet& set, const char* what, std::size_t bytes, double seconds) {
  std::printf("%s\t%s\t%zu\t%.9f\n", set.name.c_str(), what, bytes, seconds);
  std::fflush(stdout);
}

void measure(const Gpu& gpu, const TensorSet& set) {
  constexpr std::size_t of_torch = 256;  // how tensors are aligned where they lie,
  constexpr std::size_t of_packed = 16;  // and in a fusion buffer
  std::size_t apart = 0;
  std::size_t together = 0;
  std::size_t total = 0;  // elements
  for (const std::size_t elements : set.elements) {
    apart += aligned(4 * elements, of_torch);
    together += aligned(4 * elements, of_packed);
    total += elements;
  }
  const auto memory = take(DeviceMemory::allocate(gpu.device, apart));
  const auto buffer = take(DeviceMemory::allocate(gpu.device, together));
  check(fill_bytes(gpu.stream, memory.data(), std::byte{}, apart));
  std::vector<TensorCopy> pack;
  std::vector<TensorCopy> unpack;
  std::vector<TensorCopy> narrow;
  std::vector<TensorCopy> widen;
  std::byte* tensor = memory.data();
  std::byte* packed = buffer.data();
  std::byte* half = buffer.data();
  for (const std::size_t elements : set.elements) {
    pack.push_back({tensor, packed, elements, DataType::float32, DataType::float32});
    unpack.push_back({packed, tensor, elements, DataType::float32, DataType::float32});
    narrow.push_back({tensor, half, elements, DataType::float32, DataType::bfloat16});
    widen.push_back({half, tensor, elements, DataType::bfloat16, DataType::float32});
    tensor += aligned(4 * elements, of_torch);
    packed += aligned(4 * elements, of_packed);
    half += aligned(2 * elements, of_packed);
  }
  const auto kernel = [&](const std::vector<TensorCopy>& copies, double scale) {
    return seconds_of(gpu, [&] { check(gpu.kernels.copy(gpu.stream, copies, scale)); });
  };
  const double copied = seconds_of(
      gpu, [&] { check(copy_on_device(gpu.stream, buffer.data(), memory.data(), 4 * total)); });
  print(set, "copy", 8 * total, copied);
  print(set, "pack", 8 * total, kernel(pack, 1));
  print(set, "unpack", 8 * total, kernel(unpack, 1));
  print(set, "cast and scale to bfloat16", 6 * total, kernel(narrow, 0.5));
  print(set, "cast and scale from bfloat16", 6 * total, kernel(widen, 2.0));
}

}  // namespace
}  // namespace rueda

// With the word "small", sets that a rehearsal over the double of the driver has time for.
int main(int count, char** words) {
  using namespace rueda;
  try {
    const CudaDriver* driver = take(load_cuda(take(read_options(process_environment(), {}))));
    const DeviceReference device = take(CudaDevice::open(*driver, 0));
    const Gpu gpu{device, take(CudaStream::create(device)), take(BatchKernels::load(device))};
    const bool is_small = count > 1 && std::string_view(words[1]) == "small";
    for (TensorSet set : {resnet50(), widely_mixed()}) {
      if (is_small) {
        for (std::size_t& elements : set.elements) elements = elements / 4096 + 1;
      }
      measure(gpu, set);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kernel_rates: %s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
