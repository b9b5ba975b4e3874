// Loops that do no arithmetic worth mentioning: what memory allows for so many loads and stores.
#pragma once

#include <cstddef>

namespace rueda {

// Writes the inputs, or-ed, to each target. Addresses and sizes are multiples of 4096 bytes.
using PlainLoop = void (*)(std::byte* const* targets, const std::byte* const* inputs,
                           std::size_t bytes);

// The loop for so many arrays; null where there is none. Weak, because an architecture has only
// some of the instruction sets.
namespace baseline {
[[gnu::weak]] PlainLoop plain_loop(int inputs, int targets, bool streams);
}
namespace avx2 {
[[gnu::weak]] PlainLoop plain_loop(int inputs, int targets, bool streams);
}
namespace avx512 {
[[gnu::weak]] PlainLoop plain_loop(int inputs, int targets, bool streams);
}
namespace neon {
[[gnu::weak]] PlainLoop plain_loop(int inputs, int targets, bool streams);
}

}  // namespace rueda
