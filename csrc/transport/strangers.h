// Limits for connections that have not yet shown that they belong to the job, wherever Rueda
// listens: at the ranks' own listeners (pending_handshakes.h), at the rendezvous, and where
// descriptors are handed on. This many at once cost little, and keep no rank out for long.
#pragma once

#include <chrono>
#include <cstddef>

namespace rueda {

// Pending at once; if more come, the oldest is closed. Where all ranks may come at the same time,
// one more for each of them.
inline constexpr std::size_t max_strangers = 64;
// Time for each to identify itself.
inline constexpr auto handshake_timeout = std::chrono::seconds(10);
// A thread with other work accepts at most this many connections before it does that work.
inline constexpr int max_accepted_at_once = 64;
// When to retry if a process lacks descriptors: nothing reports when one is free again.
inline constexpr auto accept_back_off = std::chrono::milliseconds(100);

}  // namespace rueda
