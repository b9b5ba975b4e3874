// Records what happened to each tensor in a trace file, on request; see TimelineWriter.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "coordinator/timeline_writer.h"
#include "coordinator/trace_file.h"
#include "core/status.h"

namespace rueda {

// The trace of a process. Its worlds take turns in writing it: one file, whichever world opened it.
class Trace {
 public:
  // Closed.
  Trace() = default;
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

 private:
  friend class Timeline;

  enum class Replaces : std::uint8_t { own_files, any_file };

  // `path`: as requested. `name`: the same, with the world's number if it gets one.
  Status open(const std::string& path, std::string name, const TimelineStyle& style,
              Replaces replaces);
  void close();

  std::atomic<bool> is_open_ = false;
  std::mutex mutex_;        // guards everything below
  bool is_begun_ = false;   // opened or stopped before: options no longer open it
  bool has_ended_ = false;  // never opened again
  int turn_ = 0;            // turn of the world that writes
  WorldMark world_;         // that world
  std::string path_;        // as requested, while open
  TimelineStyle style_;
  std::set<std::string> own_files_;  // files that this process created
  TraceFile file_;
  std::unique_ptr<TimelineWriter> writer_;
};

// One world's access to its process's trace. Thread-safe.
class Timeline {
 public:
  explicit Timeline(std::shared_ptr<Trace> trace = std::make_shared<Trace>())
      : trace_(std::move(trace)) {}
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Makes this world the only one that writes; earlier worlds no longer do, whatever still happens
  // in them. An open trace gets a mark and continues. If none was opened yet, opens `path` like
  // open(), but as <path>.epoch<number> in a later world, since `path` may name the file of another
  // process that had this rank before. Empty `path`: opens none. Errors: those of open().
  Status take_over(const WorldMark& world, const std::string& path, const TimelineStyle& style);

  // Starts writing to `path`, in which %r stands for the rank in the writing world; without %r only
  // rank 0 writes. Has no effect if `path` is already being written in this style, for functions
  // that run again in each world. In a later world an existing file that this process did not
  // create may belong to another rank, alive or lost: it stays, and <path>.epoch<number> is written
  // instead. Errors: invalid_argument if another trace is open, not_initialized after end(),
  // initialization if the file cannot be written.
  Status open(const std::string& path, const TimelineStyle& style = {});
  // Finishes the file. Has no effect while closed.
  void close();
  // Closes it with the last world. Nothing opens it again, even if other threads still refer to
  // that world.
  void end();
  [[nodiscard]] bool is_open() const { return trace_->is_open_.load(std::memory_order_relaxed); }

  // Calls `tell` with the TimelineWriter. Has no effect while closed.
  template <typename Tell>
  void write(Tell tell) {
    if (!is_open()) return;
    const std::lock_guard lock(trace_->mutex_);
    // It may have been closed or taken over in the meantime.
    if (is_open() && turn_ == trace_->turn_) tell(*trace_->writer_);
  }

  // Flushes to the operating system, so that a killed job leaves a readable trace.
  void flush();

 private:
  const std::shared_ptr<Trace> trace_;
  int turn_ = 0;  // under the trace's mutex
};

}  // namespace rueda
