#include "limit_loops.h"

#include <algorithm>
#include <array>

#if defined(__x86_64__)
#include <immintrin.h>
// Compiled for each of these, chosen when the program starts. An attribute cannot be named
// otherwise.
#define RUEDA_BENCH_BEST_VECTORS [[gnu::target_clones("avx512f", "avx2", "default")]]
#else
#define RUEDA_BENCH_BEST_VECTORS
#endif

namespace rueda_bench {
namespace {

constexpr std::size_t block = 1024;  // elements: stays in the first cache

RUEDA_BENCH_BEST_VECTORS
void sum_two(float* __restrict a, float* __restrict b, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    const float sum = a[i] + b[i];
    a[i] = sum;
    b[i] = sum;
  }
}

RUEDA_BENCH_BEST_VECTORS
void sum_four(float* __restrict a, float* __restrict b, float* __restrict c, float* __restrict d,
              std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    const float sum = a[i] + b[i] + c[i] + d[i];
    a[i] = sum;
    b[i] = sum;
    c[i] = sum;
    d[i] = sum;
  }
}

void sum_any(std::span<float* const> buffers, std::size_t begin, std::size_t end) {
  std::array<float, block> sum;
  for (std::size_t at = begin; at < end; at += block) {
    const std::size_t count = std::min(block, end - at);
    std::copy_n(buffers[0] + at, count, sum.data());
    for (float* const buffer : buffers.subspan(1)) add(sum.data(), buffer + at, count);
    for (float* const buffer : buffers) std::copy_n(sum.data(), count, buffer + at);
  }
}

#if defined(__x86_64__)
// Four vectors fill a cache line, so that a whole line leaves at once.
template <std::size_t count>
void stream_lines(std::span<float* const> buffers, std::size_t begin, std::size_t end) {
  std::array<float*, count> at;
  std::copy_n(buffers.begin(), count, at.begin());
  for (std::size_t i = begin; i < end; i += 16) {
    __m128 sum[4];
    for (std::size_t k = 0; k < 4; ++k) sum[k] = _mm_load_ps(at[0] + i + 4 * k);
    for (std::size_t b = 1; b < count; ++b) {
      for (std::size_t k = 0; k < 4; ++k)
        sum[k] = _mm_add_ps(sum[k], _mm_load_ps(at[b] + i + 4 * k));
    }
    for (float* const buffer : at) {
      for (std::size_t k = 0; k < 4; ++k) _mm_stream_ps(buffer + i + 4 * k, sum[k]);
    }
  }
  _mm_sfence();
}
#endif

}  // namespace

void sum_into_all(std::span<float* const> buffers, std::size_t begin, std::size_t end) {
  switch (buffers.size()) {
    case 2: return sum_two(buffers[0], buffers[1], begin, end);
    case 4: return sum_four(buffers[0], buffers[1], buffers[2], buffers[3], begin, end);
    default: return sum_any(buffers, begin, end);
  }
}

void sum_into_all_streaming(std::span<float* const> buffers, std::size_t begin, std::size_t end) {
  std::size_t whole = begin;
#if defined(__x86_64__)
  if (begin < end) whole = begin + (end - begin) / 16 * 16;
  switch (buffers.size()) {
    case 2: stream_lines<2>(buffers, begin, whole); break;
    case 3: stream_lines<3>(buffers, begin, whole); break;
    case 4: stream_lines<4>(buffers, begin, whole); break;
    default: whole = begin;
  }
#endif
  sum_into_all(buffers, whole, end);
}

bool has_streaming_stores() {
#if defined(__x86_64__)
  return true;
#else
  return false;
#endif
}

RUEDA_BENCH_BEST_VECTORS
void add(float* __restrict a, const float* __restrict b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) a[i] += b[i];
}

}  // namespace rueda_bench
