// Writes what happened to each tensor, if and where somebody wants to see it: see TimelineWriter.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "coordinator/timeline_writer.h"
#include "coordinator/trace_file.h"
#include "core/status.h"

namespace rueda {

// Any thread may open and close it while another one writes.
class Timeline {
 public:
  // Writes nothing.
  Timeline() = default;
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Starts writing to `path`, in which %r stands for the rank; without %r, rank 0 alone writes.
  // invalid_argument where it is open already, initialization where the file cannot be written.
  Status open(const std::string& path, int rank, const TimelineStyle& style = {});
  // Ends the file. Without effect while not open.
  void close();
  [[nodiscard]] bool is_open() const { return open_.load(std::memory_order_relaxed); }

  // Calls `tell` with the TimelineWriter. Without effect while not open.
  template <typename Tell>
  void write(Tell tell) {
    if (!is_open()) return;
    const std::lock_guard lock(mutex_);
    if (is_open()) tell(*writer_);  // not closed meanwhile
  }

  // Hands what has been written to the system, so that a killed job leaves a readable trace.
  void flush();

 private:
  std::atomic<bool> open_ = false;
  std::mutex mutex_;  // of all below
  TraceFile file_;
  std::unique_ptr<TimelineWriter> writer_;
};

}  // namespace rueda
