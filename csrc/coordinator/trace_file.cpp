#include "coordinator/trace_file.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "core/strings.h"

namespace rueda {

Status TraceFile::open(const std::string& path) {
  file_.clear();
  file_.open(path, std::ios::trunc);
  if (!file_) {
    return {ErrorCode::initialization,
            str("the timeline cannot be written to '", path, "': ", std::strerror(errno))};
  }
  start_ = Clock::now();
  is_empty_ = true;
  return {};
}

void TraceFile::close() {
  file_ << (is_empty_ ? "[\n]\n" : "\n]\n");
  file_.close();
}

void TraceFile::write(std::string_view members) {
  file_ << (is_empty_ ? "[\n{" : ",\n{") << members << '}';
  is_empty_ = false;
}

std::string TraceFile::microseconds(Time when) const {
  return microseconds(when - start_);
}

std::string TraceFile::microseconds(Duration length) {
  std::array<char, 64> number{};  // with a point whatever the application's locale
  const auto end = std::to_chars(number.data(), number.data() + number.size(),
                                 to_seconds(length) * 1e6, std::chars_format::fixed, 3);
  return {number.data(), end.ptr};
}

std::string TraceFile::text(std::string_view text) {
  std::string quoted = "\"";
  for (const char character : text) {
    if (character == '"' || character == '\\') {
      quoted += '\\';
      quoted += character;
    } else if (static_cast<unsigned char>(character) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned char>(character));
      quoted += escape;
    } else {
      quoted += character;
    }
  }
  return quoted + '"';
}

}  // namespace rueda
