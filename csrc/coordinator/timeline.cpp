#include "coordinator/timeline.h"

#include "core/strings.h"

namespace rueda {

Status Trace::open(const std::string& path, int rank, const TimelineStyle& style) {
  std::string name = path;
  const auto place = name.find("%r");
  if (place == std::string::npos && rank != 0) return {};
  if (place != std::string::npos) name.replace(place, 2, std::to_string(rank));
  if (Status status = file_.open(name); !status.ok()) return status;
  writer_ = make_timeline_writer(style, file_, rank);
  is_begun_ = true;
  is_open_ = true;
  return {};
}

Status Timeline::take_over(const WorldMark& world, const std::string& path,
                           const TimelineStyle& style) {
  const std::lock_guard lock(trace_->mutex_);
  turn_ = ++trace_->turn_;
  if (is_open()) {
    trace_->writer_->world(world, Clock::now());
    return {};
  }
  if (path.empty() || trace_->is_begun_) return {};
  return trace_->open(world.epoch == 0 ? path : str(path, ".epoch", world.epoch), world.rank,
                      style);
}

Status Timeline::open(const std::string& path, int rank, const TimelineStyle& style) {
  const std::lock_guard lock(trace_->mutex_);
  if (is_open()) {
    return {ErrorCode::invalid_argument, "a timeline is being written already: stop it first"};
  }
  return trace_->open(path, rank, style);
}

void Timeline::close() {
  const std::lock_guard lock(trace_->mutex_);
  trace_->is_begun_ = true;
  if (!is_open()) return;
  trace_->writer_.reset();
  trace_->file_.close();
  trace_->is_open_ = false;
}

void Timeline::flush() {
  if (!is_open()) return;
  const std::lock_guard lock(trace_->mutex_);
  trace_->file_.flush();
}

}  // namespace rueda
