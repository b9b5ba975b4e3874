// A 32-bit word that threads sleep on: one system call per real wait, none when the value has
// changed already.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "core/clock.h"

namespace rueda {

enum class FutexWake { changed, timeout, interrupted };

// Who else sleeps on the word or wakes its sleepers.
enum class FutexReach { process, host };  // host: any process that maps it

// Sleeps while `word` holds `expected`. Returns `interrupted` when a signal handler ran, so that a
// caller in Python can look for Ctrl-C. May return `changed` spuriously: check the word.
FutexWake futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                     std::optional<Time> deadline, FutexReach reach = FutexReach::process);
// Whoever has slept longest. Only where it does not matter which sleeper wakes.
void futex_wake_one(std::atomic<std::uint32_t>& word);
void futex_wake_all(std::atomic<std::uint32_t>& word, FutexReach reach = FutexReach::process);

}  // namespace rueda
