// What a reduction does to memory, and nothing else: loops that set the limit.
#pragma once

#include <cstddef>
#include <span>

namespace rueda_bench {

// The elements [begin, end) of every buffer become their sum over all buffers, added in order. The
// buffers lie apart and are aligned to 64 bytes.
void sum_into_all(std::span<float* const> buffers, std::size_t begin, std::size_t end);
// The same with stores that pass by the caches. `begin` is a multiple of 16.
void sum_into_all_streaming(std::span<float* const> buffers, std::size_t begin, std::size_t end);
// Whether this processor has such stores; where not, the plain loop runs instead.
[[nodiscard]] bool has_streaming_stores();

// a[i] += b[i]
void add(float* a, const float* b, std::size_t count);

}  // namespace rueda_bench
