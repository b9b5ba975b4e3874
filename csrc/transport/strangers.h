// What is granted to connections that have not shown yet that they belong to the job, wherever one
// listens: at the ranks' own listeners (pending_handshakes.h), at the rendezvous, and where
// descriptors are handed on. So many at once cost little, and keep no rank out for long.
#pragma once

#include <chrono>
#include <cstddef>

namespace rueda {

// At once; where more come, the oldest makes room. Where all ranks may come at the same time, one
// more for each of them.
inline constexpr std::size_t max_strangers = 64;
// For each, to say who it is.
inline constexpr auto handshake_timeout = std::chrono::seconds(10);
// Who serves other things as well takes no more connections than this before it looks at those.
inline constexpr int max_accepted_at_once = 64;
// When to try again where a process lacks descriptors: nothing tells when one is free again.
inline constexpr auto accept_back_off = std::chrono::milliseconds(100);

}  // namespace rueda
