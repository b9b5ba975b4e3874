#include "coordinator/timeline.h"

#include <sys/stat.h>

#include <utility>

#include "core/log.h"
#include "core/strings.h"

namespace rueda {

namespace {

bool is_regular_file(const std::string& path) {
  struct stat facts{};
  return ::stat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode);
}

}  // namespace

Status Trace::open(const std::string& path, std::string name, const TimelineStyle& style,
                   Replaces replaces) {
  const auto place = name.find("%r");
  if (place == std::string::npos && world_.rank != 0) return {};
  if (place != std::string::npos) name.replace(place, 2, std::to_string(world_.rank));
  if (replaces == Replaces::own_files && !own_files_.contains(name) && is_regular_file(name)) {
    std::string other = str(name, ".epoch", world_.epoch);
    log(LogLevel::info, "the timeline is written to '", other, "': '", name,
        "' may belong to another rank");
    name = std::move(other);
  }
  if (Status status = file_.open(name); !status.ok()) return status;
  writer_ = make_timeline_writer(style, file_, world_.rank);
  own_files_.insert(std::move(name));
  path_ = path;
  style_ = style;
  is_begun_ = true;
  is_open_ = true;
  return {};
}

void Trace::close() {
  is_begun_ = true;
  if (!is_open_) return;
  writer_.reset();
  file_.close();
  is_open_ = false;
}

Status Timeline::take_over(const WorldMark& world, const std::string& path,
                           const TimelineStyle& style) {
  const std::lock_guard lock(trace_->mutex_);
  turn_ = ++trace_->turn_;
  trace_->world_ = world;
  if (is_open()) {
    trace_->writer_->world(world, Clock::now());
    return {};
  }
  if (path.empty() || trace_->is_begun_) return {};
  std::string name = world.epoch == 0 ? path : str(path, ".epoch", world.epoch);
  return trace_->open(path, std::move(name), style, Trace::Replaces::any_file);
}

Status Timeline::open(const std::string& path, const TimelineStyle& style) {
  const std::lock_guard lock(trace_->mutex_);
  if (trace_->has_ended_) {
    return {ErrorCode::not_initialized, "the world has ended: no timeline can be started in it"};
  }
  if (is_open()) {
    if (path == trace_->path_ && style == trace_->style_) return {};
    return {ErrorCode::invalid_argument,
            str("a timeline is being written already, to '", trace_->path_, "': stop it first")};
  }
  const bool is_first = trace_->world_.epoch == 0;
  return trace_->open(path, path, style,
                      is_first ? Trace::Replaces::any_file : Trace::Replaces::own_files);
}

void Timeline::close() {
  const std::lock_guard lock(trace_->mutex_);
  trace_->close();
}

void Timeline::end() {
  const std::lock_guard lock(trace_->mutex_);
  trace_->close();
  trace_->has_ended_ = true;
}

void Timeline::flush() {
  if (!is_open()) return;
  const std::lock_guard lock(trace_->mutex_);
  trace_->file_.flush();
}

}  // namespace rueda
