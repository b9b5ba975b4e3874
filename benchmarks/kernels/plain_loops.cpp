#include "plain_loops.h"

#include "registers.h"

namespace rueda::RUEDA_KERNELS {

namespace {

template <int inputs, int targets, bool streams>
void loop(std::byte* const* targets_given, const std::byte* const* inputs_given,
          std::size_t bytes) {
  const std::byte* from[inputs];
  std::byte* to[targets];
  for (int k = 0; k < inputs; ++k) from[k] = inputs_given[k];
  for (int t = 0; t < targets; ++t) to[t] = targets_given[t];
#pragma GCC unroll 4
  for (std::size_t at = 0; at < bytes; at += register_bytes) {
    Bytes all{};
#pragma GCC unroll 8
    for (int k = 0; k < inputs; ++k) {
      Bytes value;
      __builtin_memcpy(&value, from[k] + at, sizeof(value));
      all |= value;
    }
#pragma GCC unroll 4
    for (int t = 0; t < targets; ++t) {
      if constexpr (streams) {
        stream(to[t] + at, all);
      } else {
        __builtin_memcpy(to[t] + at, &all, sizeof(all));
      }
    }
  }
  if constexpr (streams) finish_streams();
}

struct Shape {
  int inputs;
  int targets;
  PlainLoop cached;
  PlainLoop streaming;
};

template <int inputs, int targets>
constexpr Shape shape{inputs, targets, &loop<inputs, targets, false>, &loop<inputs, targets, true>};

}  // namespace

PlainLoop plain_loop(int inputs, int targets, bool streams) {
  static constexpr Shape shapes[]{shape<1, 1>, shape<2, 1>, shape<2, 2>, shape<3, 1>,
                                  shape<3, 3>, shape<4, 1>, shape<4, 4>, shape<8, 1>};
  for (const Shape& each : shapes) {
    if (each.inputs == inputs && each.targets == targets) {
      return streams ? each.streaming : each.cached;
    }
  }
  return nullptr;
}

}  // namespace rueda::RUEDA_KERNELS
