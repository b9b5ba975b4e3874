// A file of events in Chrome's trace format, which chrome://tracing and ui.perfetto.dev show. Who
// uses it from several threads locks.
#pragma once

#include <string>
#include <string_view>

#include "core/clock.h"
#include "core/status.h"
#include "core/unique_fd.h"

namespace rueda {

class TraceFile {
 public:
  TraceFile() = default;
  ~TraceFile() { close(); }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Replaces a file that is there; a process that still writes it goes on without a name.
  // initialization where the file cannot be written, and for pipes and sockets: whoever reads them
  // could make the engine wait.
  Status open(const std::string& path);
  // Ends the array. The format allows an unfinished one: a trace of a killed job loads as well.
  void close();
  // Hands what has been written to the system. Where that fails, as on a full disk, an error is
  // logged once, the file is cut behind its last whole event, and further events are dropped.
  void flush();

  // One event, given as its members: "\"ph\":\"E\",\"pid\":1".
  void write(std::string_view members);

  [[nodiscard]] Time start() const { return start_; }
  // Since start(), as JSON.
  [[nodiscard]] std::string microseconds(Time when) const;
  [[nodiscard]] static std::string microseconds(Duration length);
  [[nodiscard]] static std::string text(std::string_view text);

 private:
  // How much of `pending_` the system has taken.
  std::size_t write_pending();
  void give_up(std::size_t taken, int error);

  std::string path_;
  UniqueFd fd_;
  std::string pending_;  // whole events, but for the first bracket and the last
  bool has_failed_ = false;
  Time start_;
  bool is_empty_ = true;
};

}  // namespace rueda
