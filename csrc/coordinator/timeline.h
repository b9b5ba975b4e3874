// Writes what happened to each tensor as a Chrome trace (chrome://tracing, ui.perfetto.dev): one
// row per tensor, one bar per phase. Rows are named after the tensors; the process is the rank.
#pragma once

#include <atomic>
#include <fstream>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/clock.h"
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
  Status open(const std::string& path, int rank);
  // Ends the file. Without effect while not open.
  void close();
  [[nodiscard]] bool is_open() const { return open_.load(std::memory_order_relaxed); }

  // A phase of a tensor. Without effect while not open.
  void span(const std::string& tensor, std::string_view phase, Time begin, Time end);
  // Something that happened at one moment, such as a stall warning.
  void mark(const std::string& tensor, std::string_view event, Time when);

  // Hands what has been written to the system, so that a killed job leaves a readable trace.
  void flush();

 private:
  int row_of(const std::string& tensor);
  [[nodiscard]] double microseconds(Time when) const;

  std::atomic<bool> open_ = false;
  std::mutex mutex_;  // of all below
  std::ofstream file_;
  int rank_ = 0;
  Time start_;
  std::unordered_map<std::string, int> rows_;
};

}  // namespace rueda
