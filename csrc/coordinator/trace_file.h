// A file of events in Chrome's trace format, which chrome://tracing and ui.perfetto.dev show. Who
// uses it from several threads locks.
#pragma once

#include <fstream>
#include <string>
#include <string_view>

#include "core/clock.h"
#include "core/status.h"

namespace rueda {

class TraceFile {
 public:
  // Overwrites what is there. initialization where the file cannot be written.
  Status open(const std::string& path);
  // Ends the array. The format allows an unfinished one: a trace of a killed job loads as well.
  void close();
  // Hands what has been written to the system.
  void flush() { file_.flush(); }

  // One event, given as its members: "\"ph\":\"E\",\"pid\":1".
  void write(std::string_view members);

  [[nodiscard]] Time start() const { return start_; }
  // Since start(), as JSON.
  [[nodiscard]] std::string microseconds(Time when) const;
  [[nodiscard]] static std::string microseconds(Duration length);
  [[nodiscard]] static std::string text(std::string_view text);

 private:
  std::ofstream file_;
  Time start_;
  bool is_empty_ = true;
};

}  // namespace rueda
