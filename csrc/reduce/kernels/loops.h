// The loops over arrays, for any element, operation and scaling. Results stay in registers while
// inputs are combined into them, so that every byte is read once and written once.
#pragma once

#include "reduce/kernels/kernel_table.h"
#include "reduce/kernels/lanes.h"
#include "reduce/kernels/scaling.h"

namespace rueda::RUEDA_KERNELS {

inline constexpr std::size_t line_bytes = 64;

[[gnu::always_inline]] inline std::size_t beyond_line(const std::byte* address) {
  return reinterpret_cast<std::uintptr_t>(address) % line_bytes;
}

template <bool streams>
[[gnu::always_inline]] inline void write_register(std::byte* to, Bytes value) {
  if constexpr (streams) {
    stream(to, value);
  } else {
    __builtin_memcpy(to, &value, sizeof(value));
  }
}

template <class Element, class Operation, class Scaling>
class Loops {
 public:
  static void run(const Combination& combination, const Arrays& arrays, std::int64_t count,
                  Stores stores) {
    const Scaling scaling(combination);
    const std::size_t end = static_cast<std::size_t>(count) * Element::size;
    if (end < 2 * stride) return edge(scaling, arrays, 0, end);
    std::size_t at = 0;
    if (stores == Stores::streaming || end >= worth_aligning) {
      at = head(arrays.targets[0]);
      edge(scaling, arrays, 0, at);
    }
    if (stores == Stores::cached) {
      at = middle<false>(scaling, arrays, at, end);
    } else {
      at = are_aligned(arrays, at) ? middle<true>(scaling, arrays, at, end)
                                   : any<true>(scaling, arrays, at, end);
      finish_streams();
    }
    edge(scaling, arrays, at, end);
  }

 private:
  using Lanes = typename Element::Lanes;

  template <std::size_t count>
  struct Fixed {
    static constexpr std::size_t number = count;
  };

  template <std::size_t count>
  struct Results {
    Bytes part[count];
  };

  // Half of the registers hold results.
  static constexpr std::size_t held_at_most = register_count / 2 / Lanes::size * register_bytes;
  static constexpr std::size_t stride = held_at_most < 256 ? held_at_most : 256;
  static constexpr std::size_t registers = stride / register_bytes;
  static constexpr std::size_t registers_of_line = line_bytes / register_bytes;
  static_assert(stride % line_bytes == 0);

  static constexpr std::size_t worth_aligning = 4096;

  // The distance from the address to the first line; 0 if no element begins there.
  static std::size_t head(const std::byte* address) {
    const std::size_t bytes = (line_bytes - beyond_line(address)) % line_bytes;
    return bytes % Element::size == 0 ? bytes : 0;
  }

  static bool are_aligned(const Arrays& arrays, std::size_t at) {
    for (std::size_t t = 0; t < arrays.target_count; ++t) {
      if (beyond_line(arrays.targets[t] + at) != 0) return false;
    }
    return true;
  }

  [[gnu::always_inline]] static Lanes read(const Scaling& scaling, const std::byte* from) {
    Lanes values = Element::load(from);
    scaling.before(values);
    return values;
  }

  // The most common numbers of arrays get loops of their own, most of them for sums.
  template <bool streams>
  static std::size_t middle(const Scaling& scaling, const Arrays& arrays, std::size_t at,
                            std::size_t end) {
    if (arrays.target_count == 1 && arrays.input_count == 2) {
      return fixed<2, 1, streams>(scaling, arrays, at, end);
    }
    if constexpr (Operation::is_frequent) {
      if (arrays.target_count == 2 && arrays.input_count == 2) {
        return fixed<2, 2, streams>(scaling, arrays, at, end);
      }
      if (arrays.target_count == 1 && arrays.input_count == 3) {
        return fixed<3, 1, streams>(scaling, arrays, at, end);
      }
      if (arrays.target_count == 1 && arrays.input_count == 4) {
        return fixed<4, 1, streams>(scaling, arrays, at, end);
      }
    }
    return any<streams>(scaling, arrays, at, end);
  }

  template <std::size_t inputs, std::size_t targets, bool streams>
  static std::size_t fixed(const Scaling& scaling, const Arrays& arrays, std::size_t at,
                           std::size_t end) {
    // Copies, because the compiler must assume that the stores below may change the originals.
    const std::byte* from[inputs];
    std::byte* to[targets];
    for (std::size_t k = 0; k < inputs; ++k) from[k] = arrays.inputs[k];
    for (std::size_t t = 0; t < targets; ++t) to[t] = arrays.targets[t];
    const Scaling steps = scaling;
    for (; at + stride <= end; at += stride) {
#pragma GCC unroll 4
      for (std::size_t line = at; line < at + stride; line += line_bytes) {
        const auto results = combine<registers_of_line>(
            steps, Fixed<inputs>{}, [&](std::size_t k) { return from[k] + line; });
#pragma GCC unroll 2
        for (std::size_t t = 0; t < targets; ++t) write<streams>(to[t] + line, results);
      }
    }
    return at;
  }

  // Streams to those targets whose lines are aligned with the results.
  template <bool streams>
  static std::size_t any(const Scaling& scaling, const Arrays& arrays, std::size_t at,
                         std::size_t end) {
    for (; at + stride <= end; at += stride) {
      const auto results = combine_at<registers>(scaling, arrays, at);
      for (std::size_t t = 0; t < arrays.target_count; ++t) {
        std::byte* to = arrays.targets[t] + at;
        if (streams && beyond_line(to) == 0) {
          write<streams>(to, results);
        } else {
          write<false>(to, results);
        }
      }
    }
    return at;
  }

  // Line by line; a partial last line goes through a copy.
  [[gnu::noinline]] static void edge(const Scaling& scaling, const Arrays& arrays, std::size_t at,
                                     std::size_t end) {
    for (; at + line_bytes <= end; at += line_bytes) {
      const auto results = combine_at<registers_of_line>(scaling, arrays, at);
      for (std::size_t t = 0; t < arrays.target_count; ++t) {
        write<false>(arrays.targets[t] + at, results);
      }
    }
    if (at == end) return;
    alignas(line_bytes) std::byte copy[line_bytes];
    const auto results =
        combine<registers_of_line>(scaling, arrays.input_count, [&](std::size_t k) {
          read_part(copy, arrays.inputs[k] + at, end - at);
          return copy;
        });
    write<false>(copy, results);
    for (std::size_t t = 0; t < arrays.target_count; ++t) {
      write_part(arrays.targets[t] + at, copy, end - at);
    }
  }

  template <std::size_t count>
  [[gnu::always_inline]] static Results<count> combine_at(const Scaling& scaling,
                                                          const Arrays& arrays, std::size_t at) {
    return combine<count>(scaling, arrays.input_count,
                          [&](std::size_t k) { return arrays.inputs[k] + at; });
  }

  // Combines `count` registers of each input, starting at address_of(its number). `inputs` may be a
  // compile-time constant.
  template <std::size_t count, class Inputs, class AddressOf>
  [[gnu::always_inline]] static Results<count> combine(const Scaling& scaling, Inputs inputs,
                                                       const AddressOf& address_of) {
    Lanes values[count];
    const std::byte* from = address_of(0);
#pragma GCC unroll 8
    for (std::size_t r = 0; r < count; ++r) values[r] = read(scaling, from + r * register_bytes);
    const auto add = [&](std::size_t k) __attribute__((always_inline)) {
      from = address_of(k);
#pragma GCC unroll 8
      for (std::size_t r = 0; r < count; ++r) {
        const Lanes others = read(scaling, from + r * register_bytes);
        for (int i = 0; i < Lanes::size; ++i) {
          values[r].part[i] = Operation::combine(values[r].part[i], others.part[i]);
        }
      }
    };
    if constexpr (requires { Inputs::number; }) {
#pragma GCC unroll 4
      for (std::size_t k = 1; k < Inputs::number; ++k) add(k);
    } else {
#pragma GCC unroll 1
      for (std::size_t k = 1; k < inputs; ++k) add(k);
    }
    Results<count> results;
#pragma GCC unroll 8
    for (std::size_t r = 0; r < count; ++r) {
      scaling.after(values[r]);
      results.part[r] = Element::narrow(values[r]);
    }
    return results;
  }

  template <bool streams, std::size_t count>
  [[gnu::always_inline]] static void write(std::byte* to, const Results<count>& results) {
#pragma GCC unroll 8
    for (std::size_t r = 0; r < count; ++r) {
      write_register<streams>(to + r * register_bytes, results.part[r]);
    }
  }
};

}  // namespace rueda::RUEDA_KERNELS
