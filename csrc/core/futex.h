// A 32-bit word that threads sleep on: one system call per real wait, none if the value has already
// changed.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "core/clock.h"

namespace rueda {

enum class FutexWake { changed, timeout, interrupted };

// Which threads sleep on the word or wake its sleepers.
enum class FutexReach { process, host };  // host: any process that maps it

// Sleeps while `word` holds `expected`. Returns `interrupted` if a signal handler ran, so that a
// caller in Python can check for Ctrl-C. May return `changed` spuriously: check the word.
FutexWake futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                     std::optional<Time> deadline, FutexReach reach = FutexReach::process);
// Wakes the longest sleeper. Use only if it does not matter which one wakes.
void futex_wake_one(std::atomic<std::uint32_t>& word);
void futex_wake_all(std::atomic<std::uint32_t>& word, FutexReach reach = FutexReach::process);

}  // namespace rueda
