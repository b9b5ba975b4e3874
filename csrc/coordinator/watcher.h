// Watches descriptors for a driver that sleeps on a word in memory: a thread that sleeps in poll(),
// so that the driver needs no system call to see that nothing has come.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "core/status.h"
#include "core/unique_fd.h"

namespace rueda {

class Watcher {
 public:
  Watcher() = default;
  ~Watcher() { stop(); }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // Watches `first` and `second` (or -1) until stop(); calls `notify` on the watching thread when
  // one is readable. Then ignores them until rearm().
  Status start(int first, int second, std::function<void()> notify);
  void stop();

  // --- For the driver

  // Whether something was readable since the last rearm().
  [[nodiscard]] bool has_seen() const { return state_.load() == seen; }
  // Whether the second descriptor was.
  [[nodiscard]] bool has_seen_second() const { return has_seen() && second_.load(); }
  // Watches again. A descriptor that is still readable is seen at once.
  void rearm();

 private:
  enum State : std::uint32_t { watching, seen, stopping };

  void watch(int first, int second);

  UniqueFd stop_fd_;
  std::function<void()> notify_;
  std::atomic<std::uint32_t> state_{watching};
  std::atomic<bool> second_{false};
  std::thread thread_;
};

}  // namespace rueda
