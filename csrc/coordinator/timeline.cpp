#include "coordinator/timeline.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/strings.h"

namespace rueda {

namespace {

std::string json_text(std::string_view text) {
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

}  // namespace

Timeline::~Timeline() {
  close();
}

void Timeline::close() {
  const std::lock_guard lock(mutex_);
  if (!is_open()) return;
  // The format allows an unfinished array: a trace of a killed job loads as well.
  file_ << "\n]\n";
  file_.close();
  rows_.clear();
  open_ = false;
}

Status Timeline::open(const std::string& path, int rank) {
  const std::lock_guard lock(mutex_);
  if (is_open()) {
    return {ErrorCode::invalid_argument, "a timeline is being written already: stop it first"};
  }
  std::string name = path;
  const auto place = name.find("%r");
  if (place == std::string::npos && rank != 0) return {};
  if (place != std::string::npos) name.replace(place, 2, std::to_string(rank));
  file_.clear();
  file_.open(name, std::ios::trunc);
  if (!file_) {
    return {ErrorCode::initialization,
            str("the timeline cannot be written to '", name, "': ", std::strerror(errno))};
  }
  rank_ = rank;
  start_ = Clock::now();
  file_.precision(3);
  file_ << std::fixed << "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":" << rank_
        << ",\"args\":{\"name\":\"rank " << rank_ << "\"}}";
  open_ = true;
  return {};
}

double Timeline::microseconds(Time when) const {
  return to_seconds(when - start_) * 1e6;
}

int Timeline::row_of(const std::string& tensor) {
  const auto [row, inserted] = rows_.try_emplace(tensor, static_cast<int>(rows_.size()) + 1);
  if (inserted) {
    file_ << ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":" << rank_
          << ",\"tid\":" << row->second << ",\"args\":{\"name\":" << json_text(tensor) << "}}";
  }
  return row->second;
}

void Timeline::span(const std::string& tensor, std::string_view phase, Time begin, Time end) {
  if (!is_open()) return;
  const std::lock_guard lock(mutex_);
  if (!is_open()) return;           // closed meanwhile
  begin = std::max(begin, start_);  // what was under way when the timeline was opened
  end = std::max(begin, end);
  const int row = row_of(tensor);
  file_ << ",\n{\"name\":" << json_text(phase) << ",\"ph\":\"X\",\"pid\":" << rank_
        << ",\"tid\":" << row << ",\"ts\":" << microseconds(begin)
        << ",\"dur\":" << to_seconds(end - begin) * 1e6 << "}";
}

void Timeline::mark(const std::string& tensor, std::string_view event, Time when) {
  if (!is_open()) return;
  const std::lock_guard lock(mutex_);
  if (!is_open()) return;
  const int row = row_of(tensor);
  file_ << ",\n{\"name\":" << json_text(event) << ",\"ph\":\"i\",\"s\":\"t\",\"pid\":" << rank_
        << ",\"tid\":" << row << ",\"ts\":" << microseconds(when) << "}";
}

void Timeline::flush() {
  if (!is_open()) return;
  const std::lock_guard lock(mutex_);
  file_.flush();
}

}  // namespace rueda
