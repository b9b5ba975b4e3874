// Writes what happened to each tensor, if and where somebody wants to see it: see TimelineWriter.
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

// What a process writes through all its worlds, which take turns: one file, whichever of them has
// begun it.
class Trace {
 public:
  // Writes nothing.
  Trace() = default;
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

 private:
  friend class Timeline;

  enum class Replaces : std::uint8_t { own_files, any_file };

  // `path` as it was asked for, `name` with the number of the world where it gets one.
  Status open(const std::string& path, std::string name, const TimelineStyle& style,
              Replaces replaces);
  void close();

  std::atomic<bool> is_open_ = false;
  std::mutex mutex_;        // of all below
  bool is_begun_ = false;   // or has been stopped before it was: options begin none any more
  bool has_ended_ = false;  // for good
  int turn_ = 0;            // of the world that writes,
  WorldMark world_;         // and which one that is
  std::string path_;        // asked for, while it is open
  TimelineStyle style_;
  std::set<std::string> own_files_;  // that this process has begun
  TraceFile file_;
  std::unique_ptr<TimelineWriter> writer_;
};

// What a world tells the trace of its process. Any thread may call all of it while another one
// writes.
class Timeline {
 public:
  explicit Timeline(std::shared_ptr<Trace> trace = std::make_shared<Trace>())
      : trace_(std::move(trace)) {}
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // From now on this world writes, and those before it do not, whatever still happens in them. A
  // trace that is written gets a mark and goes on. Where none has been begun `path` begins, as by
  // open(), but as <path>.epoch<number> in a later world: the name alone may be that of a file of
  // another process, whose rank this one has now. Empty: none begins. Errors of open().
  Status take_over(const WorldMark& world, const std::string& path, const TimelineStyle& style);

  // Starts writing to `path`, in which %r stands for the rank in the world that writes; without %r,
  // rank 0 alone writes. Without effect where `path` is being written in this style already, as by
  // a function that is run again in each world. In a later world a file of this name that this
  // process has not begun may be another one's, which still writes it or is lost: it stays, and
  // <path>.epoch<number> is written. invalid_argument where something else is being written,
  // not_initialized after end(), initialization where the file cannot be written.
  Status open(const std::string& path, const TimelineStyle& style = {});
  // Ends the file. Without effect while not open.
  void close();
  // Ends it together with the last world: nothing opens it again, though other threads may still
  // hold that world.
  void end();
  [[nodiscard]] bool is_open() const { return trace_->is_open_.load(std::memory_order_relaxed); }

  // Calls `tell` with the TimelineWriter. Without effect while not open.
  template <typename Tell>
  void write(Tell tell) {
    if (!is_open()) return;
    const std::lock_guard lock(trace_->mutex_);
    // Neither closed meanwhile nor taken over.
    if (is_open() && turn_ == trace_->turn_) tell(*trace_->writer_);
  }

  // Hands what has been written to the system, so that a killed job leaves a readable trace.
  void flush();

 private:
  const std::shared_ptr<Trace> trace_;
  int turn_ = 0;  // under the trace's mutex
};

}  // namespace rueda
