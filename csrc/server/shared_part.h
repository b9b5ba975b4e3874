// What the ranks of a host share of a part of a table that lies in memory that they all see: so
// that each reads it and adds to it by itself, and its owner need not wake up for that.
//
// Whoever works on the part holds the mutex, and only briefly; it survives a process that ends with
// it. The owner, whose work may take long and goes on in pieces, marks the part busy instead: the
// others then send it requests.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace rueda {

// In zeroed memory of the owner, at the same place for all. Not open until init().
struct SharedPart {
  enum State : std::uint32_t { unopened, open, closed };

  pthread_mutex_t mutex;
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint32_t> is_busy;      // the owner is at work, without the mutex
  std::atomic<std::uint32_t> is_changing;  // whoever holds the mutex changes values
  std::atomic<std::uint32_t> is_torn;      // somebody has ended in the middle of a change
  std::atomic<std::uint64_t> version;      // additions that are whole
  std::atomic<std::int64_t> least_clock;   // of all ranks, as the owner has counted

  // Where things lie in the memory that the owner shares. Written with the mutex, or while busy.
  std::uint64_t values;    // of a dense part; its state follows
  std::uint64_t index;     // of rows: slots, see row_index.h
  std::uint64_t capacity;  // how many

  // Without values or an index yet. False where the system has no such mutex.
  [[nodiscard]] bool init();
  // The owner's last word: nobody else works on it any more. Waits for who does, for a second.
  void close();
};

// Has the mutex while it lives, unless it could not be had in time or the part is not to be used.
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
