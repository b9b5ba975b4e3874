// Releases an object a moment later, in a thread of its own: for what takes long to destroy while
// something more urgent is to be done.
//
// Used for the runtime of a world that has broken. To unmap what the ranks of a host have shared
// there, and to free its pages, takes about as long as to agree on the next world, and the
// survivors' next operations come first.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace rueda {

// Not thread-safe.
class DeferredRelease {
 public:
  DeferredRelease() = default;
  ~DeferredRelease() { finish(); }
  DeferredRelease(const DeferredRelease&) = delete;
  DeferredRelease& operator=(const DeferredRelease&) = delete;

  // Gives this reference up, some milliseconds later; immediately if no thread can be started. The
  // reference taken before is given up first.
  void take(std::shared_ptr<void> object);
  // Gives up what was taken now.
  void finish();

 private:
  void wait();

  std::mutex mutex_;
  std::condition_variable changed_;
  bool hurried_ = false;
  std::shared_ptr<void> object_;  // the thread's, while there is one
  std::thread thread_;
};

}  // namespace rueda
