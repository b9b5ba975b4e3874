// One pass over any number of inputs: widen, scale, combine, divide, scale, narrow, store. The
// ranks of one host reduce their slices with it.
//
// float16 and bfloat16 widen to float32 in registers and are rounded to nearest even once, at the
// end. Inputs are combined in the given order, so passing them in rank order gives every rank the
// same bits. Compiled for several instruction sets, of which one is chosen at run time; all give
// the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "rueda/types.h"

namespace rueda {

struct Combination {
  DataType dtype = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  double prescale = 1.0;   // multiplies each input, as scale() does
  int divisor = 1;         // what an average is divided by, as divide() does; other operations: 1
  double postscale = 1.0;  // multiplies the result, after the division
};

enum class Stores : std::uint8_t {
  cached,
  streaming,  // bypasses the caches, for results that are larger than they are
};

// The arrays of one call. Pointers, because the kernels are compiled for more than the CPU may
// support: they must not use anything whose one copy the linker could take from them for all.
struct Arrays {
  std::byte* const* targets;
  std::size_t target_count;
  const std::byte* const* inputs;
  std::size_t input_count;
};

struct KernelTable;

class Combiner {
 public:
  // Requires is_supported(op, dtype) and divisor > 0.
  explicit Combiner(const Combination& combination);
  // With the kernels of one instruction set (reduce/instruction_set.h).
  Combiner(const Combination& combination, const KernelTable& kernels);

  // targets[t][i] = the combination of inputs[k][i] over all k, for i in [0, count) and every t. A
  // target may be the same array as an input, but must not overlap one otherwise. Any alignment. At
  // least one target. Without inputs, as on a host whose ranks have all joined, the targets get the
  // unscaled identity of the operation. A streamed result is visible to other cores when the call
  // returns.
  void operator()(std::span<std::byte* const> targets, std::span<const std::byte* const> inputs,
                  std::int64_t count, Stores stores) const {
    if (inputs.empty()) return fill(targets, count);
    run_(combination_, {targets.data(), targets.size(), inputs.data(), inputs.size()},
         count * parts_, stores);
  }

 private:
  using Run = void (*)(const Combination&, const Arrays&, std::int64_t count, Stores);
  void fill(std::span<std::byte* const> targets, std::int64_t count) const;

  Combination combination_;
  Run run_;
  std::int64_t parts_;  // what the kernel counts as elements, per element
};

// target[i] = input[i]; the arrays must not overlap.
void copy_bytes(std::byte* target, const std::byte* input, std::size_t bytes, Stores stores);

// The instruction set for which kernels were chosen: "baseline", "avx2", "avx512" or "neon". The
// environment variable RUEDA_INSTRUCTION_SET, read once, names a supported one to use instead of
// the best.
[[nodiscard]] std::string_view instruction_set();

}  // namespace rueda
