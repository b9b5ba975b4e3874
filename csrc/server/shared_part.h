// What the ranks of a host share of a part of a table that is in memory visible to all of them:
// each reads it and adds to it directly, without waking its owner.
//
// A rank holds the mutex while it works on the part, and only briefly. The mutex survives a process
// that dies with it. The owner, whose work may be long and goes on in pieces, marks the part busy
// instead: the others then send it requests.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace rueda {

// In zeroed memory of the owner, at the same offset for all. Not open until init().
struct SharedPart {
  enum State : std::uint32_t { unopened, open, closed };

  pthread_mutex_t mutex;
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint32_t> is_busy;      // the owner is working, without the mutex
  std::atomic<std::uint32_t> is_changing;  // the holder of the mutex is changing values
  std::atomic<std::uint32_t> is_torn;      // a process has died in the middle of a change
  std::atomic<std::uint64_t> version;      // complete additions
  std::atomic<std::int64_t> least_clock;   // of all ranks, as counted by the owner

  // Offsets in the memory that the owner shares. Written with the mutex, or while busy.
  std::uint64_t values;    // of a dense part; its state follows
  std::uint64_t index;     // of rows: slots, see row_index.h
  std::uint64_t capacity;  // number of slots

  // Without values or an index yet. False if the system has no such mutex.
  [[nodiscard]] bool init();
  // The owner's last call: nobody else uses the part afterwards. Waits a second for current users.
  void close();
};

// Holds the mutex while it lives, unless it timed out or the part must not be used.
class SharedPartLock {
 public:
  explicit SharedPartLock(SharedPart& part, std::chrono::microseconds limit);
  ~SharedPartLock();
  SharedPartLock(const SharedPartLock&) = delete;
  SharedPartLock& operator=(const SharedPartLock&) = delete;

  [[nodiscard]] explicit operator bool() const { return has_it_; }

 private:
  SharedPart& part_;
  bool has_it_ = false;
};

}  // namespace rueda
