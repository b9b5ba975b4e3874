// Who drives the engine. One thread at a time holds the helm: the engine's own thread, or a caller
// that waits for a handle anyway, which saves it two thread switches.
//
// The engine's thread drives only while something is under way, and lets callers have the helm when
// they want it. A caller that leaves while something is under way wakes the engine's thread. When
// nobody holds the helm, the engine's thread sits in its chair, and whoever has something to do for
// it wakes it there.
//
// Handles keep the helm alive beyond the engine; then it is closed and nobody takes it any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>

#include "core/clock.h"
#include "core/counter.h"
#include "core/futex.h"
#include "onehost/wake.h"

namespace rueda {

struct HandleState;

class Helm {
 public:
  // What there may be to do.
  enum Work : std::uint32_t {
    queued = 1,      // commands
    readable = 2,    // descriptors that are watched
    unfinished = 4,  // what is under way, or has a deadline
  };

  // Drives until the handle is done, the deadline or a signal; the caller has the helm, and leaves
  // it. May return `changed` although the handle is not done, because the engine ends.
  using Drive = std::function<FutexWake(const HandleState&, std::optional<Time>)>;

  // `patience`: how often a caller looks whether the engine's thread lets it have the helm.
  Helm(Drive drive, int patience) : drive_(std::move(drive)), patience_(patience) {}
  Helm(const Helm&) = delete;
  Helm& operator=(const Helm&) = delete;

  // --- For anyone

  // Waits for the handle, driving if possible.
  FutexWake wait(const HandleState& handle, std::optional<Time> deadline);
  // There is something to do: wakes whoever drives, and sleeps on `word`, or else the engine's
  // thread.
  void notify(Work work, WakeWord& word);
  [[nodiscard]] bool has(Work work) const { return (work_.load() & work) != 0; }
  // Nobody takes the helm any more. Async-signal-safe.
  void close() { role_.store(Role::closed); }

  // --- For callers

  [[nodiscard]] bool take_as_caller();

  // --- For the engine's thread

  [[nodiscard]] bool take_as_thread();
  // The thread, which has the helm, is about to sleep: callers may take the helm meanwhile.
  void doze() { role_.store(Role::dozing); }
  // After it: whether the thread still has the helm.
  [[nodiscard]] bool wake_from_doze();
  // Whether a caller would like to drive.
  [[nodiscard]] bool is_wanted() const { return wanting_.load() > 0; }
  // Sleeps until there may be something to do that nobody does; false where there is already.
  bool sit(Counter& sleeps);

  // --- For whoever has it

  // What has been done, or is known to be there.
  void clear(Work work) { work_.fetch_and(~static_cast<std::uint32_t>(work)); }
  void set(Work work) { work_.fetch_or(work); }
  // Where there is something left to do, the engine's thread is woken, which may sleep on `word`.
  void leave(WakeWord& word);
  // For the engine's thread, in favour of a caller that wants it.
  void offer() { role_.store(Role::nobody); }

 private:
  enum class Role : std::uint32_t { nobody, dozing, thread, caller, closed };

  [[nodiscard]] bool take_when_offered(const HandleState& handle);

  const Drive drive_;
  const int patience_;
  std::atomic<Role> role_{Role::nobody};
  std::atomic<std::uint32_t> work_{0};
  std::atomic<int> wanting_{0};
  WakeWord chair_{};
};

}  // namespace rueda
