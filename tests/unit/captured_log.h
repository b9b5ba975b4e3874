// Captures the log while it lives: standard error of the process goes to a file.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>

namespace rueda::test {

class CapturedLog {
 public:
  CapturedLog() : file_(std::tmpfile()), before_(::dup(STDERR_FILENO)) {
    if (file_ == nullptr || before_ < 0)
      throw std::runtime_error("standard error stays where it is");
    ::dup2(::fileno(file_), STDERR_FILENO);
  }
  ~CapturedLog() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
    std::fclose(file_);
  }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  [[nodiscard]] std::string text() const {
    std::string text;
    char part[4096];
    for (off_t at = 0;; at += static_cast<off_t>(sizeof part)) {
      const ssize_t got = ::pread(::fileno(file_), part, sizeof part, at);
      if (got > 0) text.append(part, static_cast<std::size_t>(got));
      if (got < static_cast<ssize_t>(sizeof part)) return text;
    }
  }
  // The number of lines of this level that contain `words`.
  [[nodiscard]] int lines(std::string_view level, std::string_view words) const {
    int found = 0;
    std::string rest = text();
    while (!rest.empty()) {
      const auto end = rest.find('\n');
      const std::string line = rest.substr(0, end);
      if (line.find(level) != std::string::npos && line.find(words) != std::string::npos) ++found;
      rest = end == std::string::npos ? "" : rest.substr(end + 1);
    }
    return found;
  }

 private:
  std::FILE* file_;
  int before_;
};

}  // namespace rueda::test
