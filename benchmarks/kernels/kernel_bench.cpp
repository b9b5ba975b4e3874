// kernel_bench [DTYPE...] [BYTES...]: the kernels of csrc/reduce beside plain loops with the same
// loads and stores, on arrays of so many bytes each (default 256 KiB, which stay in the second
// cache, and 256 MiB, which do not stay in any).
//
// GB/s counts every byte read or written once. `of plain` is the plain loop's time divided by the
// kernel's. Both are medians; the two take turns. Small calls follow. RUEDA_INSTRUCTION_SET lowers
// what both use.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "plain_loops.h"
#include "reduce/cast.h"
#include "reduce/combine.h"

namespace rueda {
namespace {

struct Case {
  Combination combination;
  int inputs;
  int targets;
  bool in_place;  // the targets are the first inputs
};

struct Unmap {
  std::size_t bytes;
  void operator()(std::byte* address) const { munmap(address, bytes); }
};
using Array = std::unique_ptr<std::byte, Unmap>;

Array make_array(std::size_t bytes) {
  void* const address =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  madvise(address, bytes, MADV_HUGEPAGE);
  std::memset(address, 0, bytes);
  return Array(static_cast<std::byte*>(address), Unmap{bytes});
}

PlainLoop find_plain_loop(int inputs, int targets, bool streams) {
  const std::string_view name = instruction_set();
  if (name == "avx512") return avx512::plain_loop(inputs, targets, streams);
  if (name == "avx2") return avx2::plain_loop(inputs, targets, streams);
  if (name == "neon") return neon::plain_loop(inputs, targets, streams);
  return baseline::plain_loop(inputs, targets, streams);
}

template <class Work>
double seconds(int repeats, const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) work();
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  return time.count() / repeats;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void measure(const Case& what, Stores stores, std::size_t bytes, std::span<const Array> arrays) {
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> targets;
  for (int k = 0; k < what.inputs; ++k) inputs.push_back(arrays[static_cast<std::size_t>(k)].get());
  for (int t = 0; t < what.targets; ++t) {
    const int first = what.in_place ? 0 : what.inputs;
    targets.push_back(arrays[static_cast<std::size_t>(first + t)].get());
  }
  const Combiner combiner(what.combination);
  const auto count = static_cast<std::int64_t>(bytes / size_of(what.combination.dtype));
  const PlainLoop plain = find_plain_loop(what.inputs, what.targets, stores == Stores::streaming);
  const auto run_kernel = [&] { combiner(targets, inputs, count, stores); };
  const auto run_plain = [&] { plain(targets.data(), inputs.data(), bytes); };

  const int repeats = static_cast<int>(std::clamp<std::size_t>((16 << 20) / bytes, 1, 100'000));
  const int rounds = bytes > (8 << 20) ? 9 : 41;
  std::vector<double> kernel_times;
  std::vector<double> plain_times;
  for (int round = 0; round < rounds; ++round) {
    kernel_times.push_back(seconds(repeats, run_kernel));
    plain_times.push_back(seconds(repeats, run_plain));
  }
  const double time = median(kernel_times);
  const auto moved = static_cast<double>(bytes) * (what.inputs + what.targets);
  const Combination& combination = what.combination;
  const bool scales = combination.prescale != 1 || combination.divisor != 1;
  std::printf("%-9s %-8s %6d %7d %-8s %-6s %-9s %10zu %8.1f %8.2f\n",
              std::string(name_of(combination.dtype)).c_str(),
              std::string(name_of(combination.op)).c_str(), what.inputs, what.targets,
              what.in_place ? "in place" : "", scales ? "yes" : "",
              stores == Stores::cached ? "cached" : "streaming", bytes, moved / time / 1e9,
              median(plain_times) / time);
  std::fflush(stdout);
}

// Conversions while packing and unpacking, against copying so many bytes that as many are loaded
// and stored in all.
void measure_cast(DataType to, DataType from, std::size_t bytes, std::span<const Array> arrays) {
  const std::size_t of_both = size_of(to) + size_of(from);
  const auto count = static_cast<std::int64_t>(bytes / std::max(size_of(to), size_of(from)));
  const std::size_t moved = static_cast<std::size_t>(count) * of_both;
  std::vector<double> cast_times;
  std::vector<double> copy_times;
  const int repeats = static_cast<int>(std::clamp<std::size_t>((16 << 20) / bytes, 1, 100'000));
  for (int round = 0; round < 9; ++round) {
    cast_times.push_back(
        seconds(repeats, [&] { cast(arrays[0].get(), to, arrays[1].get(), from, count, 0.5); }));
    copy_times.push_back(
        seconds(repeats, [&] { std::memcpy(arrays[0].get(), arrays[1].get(), moved / 2); }));
  }
  const double time = median(cast_times);
  std::printf("%-9s to %-9s %10zu bytes loaded and stored: %8.1f GB/s, %.2f of memcpy\n",
              std::string(name_of(from)).c_str(), std::string(name_of(to)).c_str(), moved,
              static_cast<double>(moved) / time / 1e9, median(copy_times) / time);
}

void measure_casts(std::size_t bytes, std::span<const Array> arrays) {
  for (const DataType narrow : {DataType::bfloat16, DataType::float16}) {
    measure_cast(narrow, DataType::float32, bytes, arrays);
    measure_cast(DataType::float32, narrow, bytes, arrays);
  }
}

// What a call costs when there is little to do, the Combiner made anew each time or kept.
void measure_small_calls(DataType dtype, std::span<const Array> arrays) {
  const Combination combination{.dtype = dtype, .op = ReduceOp::sum};
  const std::array<const std::byte*, 2> inputs{arrays[0].get(), arrays[1].get()};
  const std::array<std::byte*, 1> target{arrays[2].get()};
  const Combiner kept(combination);
  for (const std::int64_t count : {1, 7, 14, 64, 256}) {
    std::vector<double> kept_times;
    std::vector<double> made_times;
    for (int round = 0; round < 41; ++round) {
      kept_times.push_back(seconds(10'000, [&] { kept(target, inputs, count, Stores::cached); }));
      made_times.push_back(
          seconds(10'000, [&] { Combiner{combination}(target, inputs, count, Stores::cached); }));
    }
    std::printf("%-9s %8lld elements: %6.1f ns, %6.1f ns with a new Combiner\n",
                std::string(name_of(dtype)).c_str(), static_cast<long long>(count),
                median(kept_times) * 1e9, median(made_times) * 1e9);
  }
}

std::vector<Case> all_cases() {
  using enum DataType;
  using enum ReduceOp;
  std::vector<Case> cases;
  for (const DataType dtype : {float32, bfloat16, float16, float64}) {
    const Combination plain{.dtype = dtype, .op = sum};
    cases.push_back({plain, 2, 1, false});
    cases.push_back({plain, 2, 2, true});
    cases.push_back({plain, 3, 1, false});
    cases.push_back({plain, 4, 1, false});
    cases.push_back({plain, 4, 4, true});
    cases.push_back({plain, 8, 1, false});
    cases.push_back({{.dtype = dtype, .op = average, .divisor = 2}, 2, 2, true});
    cases.push_back({{.dtype = dtype, .op = average, .divisor = 3}, 3, 3, true});
    cases.push_back({{.dtype = dtype, .op = sum, .prescale = 0.5}, 1, 1, false});
    cases.push_back({{.dtype = dtype, .op = max}, 2, 1, false});
    cases.push_back({{.dtype = dtype, .op = product}, 2, 1, false});
  }
  for (const DataType dtype : {int8, int32, int64, boolean}) {
    for (const ReduceOp op : {sum, min, product}) cases.push_back({{dtype, op}, 2, 1, false});
  }
  cases.push_back({{complex64, sum}, 2, 1, false});
  cases.push_back({{complex64, product}, 2, 1, false});
  return cases;
}

bool is_dtype(std::string_view name) {
  return std::any_of(data_types.begin(), data_types.end(),
                     [&](const DataTypeInfo& type) { return type.name == name; });
}

}  // namespace
}  // namespace rueda

int main(int count, char** arguments) {
  using namespace rueda;
  std::vector<std::size_t> sizes;
  std::vector<std::string_view> dtypes;
  for (const char* argument : std::span(arguments, static_cast<std::size_t>(count)).subspan(1)) {
    const std::size_t size = std::strtoull(argument, nullptr, 10) / 4096 * 4096;
    if (size > 0) {
      sizes.push_back(size);
    } else if (is_dtype(argument)) {
      dtypes.emplace_back(argument);
    } else {
      std::fprintf(stderr, "usage: kernel_bench [DTYPE...] [BYTES...], each at least 4096\n");
      return 2;
    }
  }
  if (sizes.empty()) sizes = {256 << 10, 256 << 20};
  std::printf("kernels: %s\n", std::string(instruction_set()).c_str());
  std::printf("%-9s %-8s %6s %7s %-8s %-6s %-9s %10s %8s %8s\n", "dtype", "op", "inputs", "targets",
              "where", "scaled", "stores", "bytes", "GB/s", "of plain");
  for (const std::size_t size : sizes) {
    std::vector<Array> arrays;
    for (int i = 0; i < 9; ++i) arrays.push_back(make_array(size));
    for (const Case& each : all_cases()) {
      const std::string_view dtype = name_of(each.combination.dtype);
      if (!dtypes.empty() && std::find(dtypes.begin(), dtypes.end(), dtype) == dtypes.end()) {
        continue;
      }
      for (const Stores stores : {Stores::cached, Stores::streaming}) {
        measure(each, stores, size, arrays);
      }
    }
    if (dtypes.empty()) measure_casts(size, arrays);
  }
  std::vector<Array> small;
  for (int i = 0; i < 3; ++i) small.push_back(make_array(4096));
  for (const DataType dtype : {DataType::float32, DataType::bfloat16, DataType::float16}) {
    measure_small_calls(dtype, small);
  }
  return 0;
}
