#include "coordinator/timeline.h"

namespace rueda {

Timeline::~Timeline() {
  close();
}

void Timeline::close() {
  const std::lock_guard lock(mutex_);
  if (!is_open()) return;
  writer_.reset();
  file_.close();
  open_ = false;
}

Status Timeline::open(const std::string& path, int rank, const TimelineStyle& style) {
  const std::lock_guard lock(mutex_);
  if (is_open()) {
    return {ErrorCode::invalid_argument, "a timeline is being written already: stop it first"};
  }
  std::string name = path;
  const auto place = name.find("%r");
  if (place == std::string::npos && rank != 0) return {};
  if (place != std::string::npos) name.replace(place, 2, std::to_string(rank));
  if (Status status = file_.open(name); !status.ok()) return status;
  writer_ = make_timeline_writer(style, file_, rank);
  open_ = true;
  return {};
}

void Timeline::flush() {
  if (!is_open()) return;
  const std::lock_guard lock(mutex_);
  file_.flush();
}

}  // namespace rueda
