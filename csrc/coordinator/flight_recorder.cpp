#include "coordinator/flight_recorder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "coordinator/trace_file.h"
#include "core/log.h"
#include "core/strings.h"
#include "core/unique_fd.h"

namespace rueda {

namespace {

// Limits the memory for names in programs that give each operation a new name.
constexpr std::size_t max_names = 1 << 16;
constexpr std::size_t max_ended_sets = 1024;

// Microseconds since 1970, which make the records of several hosts comparable.
std::int64_t wall_clock(Time when) {
  const auto ago = Clock::now() - when;
  const auto wall = std::chrono::system_clock::now().time_since_epoch() - ago;
  return std::chrono::duration_cast<std::chrono::microseconds>(wall).count();
}

template <class Values>
std::string list_of(const Values& values) {
  std::string text = "[";
  for (const auto& value : values) text += str(text.size() > 1 ? "," : "", value);
  return text + "]";
}

Status failure_with(const std::string& path) {
  return {ErrorCode::initialization, str("'", path, "': ", std::strerror(errno))};
}

Status not_written(const Status& status) {
  return {status.code(), str("the flight record cannot be written: ", status.message())};
}

Status make_folders(const std::string& path) {
  for (std::size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string part = path.substr(0, end);
    if (::mkdir(part.c_str(), 0777) != 0 && errno != EEXIST) return failure_with(part);
  }
  return {};
}

std::string file_of(const std::string& folder, int rank) {
  return str(folder, "/rank", rank, ".json");
}

// Keeps an earlier world's record, under a name that does not look like this world's.
void set_aside(const std::string& folder, int rank) {
  const std::string aside = str(folder, "/rank", rank, ".previous.json");
  std::rename(file_of(folder, rank).c_str(), aside.c_str());
}

// The numbers in those entries of a folder whose whole name is `before`, a number, and `after`.
std::vector<int> numbered(const std::string& folder, const std::string& before,
                          const std::string& after) {
  std::vector<int> numbers;
  DIR* directory = ::opendir(folder.c_str());
  if (directory == nullptr) return numbers;
  while (const dirent* entry = ::readdir(directory)) {
    const std::string name = entry->d_name;
    if (!name.starts_with(before)) continue;
    const int number = std::atoi(name.c_str() + before.size());
    if (str(before, number, after) == name) numbers.push_back(number);
  }
  ::closedir(directory);
  return numbers;
}

// Sets aside records of ranks from `size` on, which this world does not have.
void set_aside_from(const std::string& folder, int size) {
  for (const int rank : numbered(folder, "rank", ".json")) {
    if (rank >= size) set_aside(folder, rank);
  }
}

Status replace_file(const std::string& path, std::string_view text) {
  const std::string unfinished = path + ".part";
  const auto failed = [&] {
    Status status = failure_with(path);
    ::unlink(unfinished.c_str());
    return status;
  };
  // Never writes into an existing file, which may be someone's link or pipe.
  ::unlink(unfinished.c_str());
  UniqueFd fd(::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd) return failed();
  while (!text.empty()) {
    const auto count = ::write(fd.get(), text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed();
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  if (::rename(unfinished.c_str(), path.c_str()) != 0) return failed();
  return {};
}

}  // namespace

FlightRecorder::FlightRecorder(std::string folder, std::size_t capacity, int rank, int size)
    : folder_(std::move(folder)),
      path_(file_of(folder_, rank)),
      capacity_(capacity),
      rank_(rank),
      size_(size) {
  if (!is_on()) return;
  Status status = make_folders(folder_);
  if (status.ok() && ::access(folder_.c_str(), W_OK) != 0) status = failure_with(folder_);
  if (!status.ok()) log(LogLevel::error, not_written(status).message());
  set_aside(folder_, rank);
  if (rank != 0) return;
  set_aside_from(folder_, size);
  // Worlds that an earlier job formed after losses.
  for (const int epoch : numbered(folder_, "epoch", "")) {
    set_aside_from(str(folder_, "/epoch", epoch), 0);
  }
}

void FlightRecorder::know_set(int id, const std::vector<int>& ranks) {
  if (!is_on()) return;
  const std::lock_guard lock(mutex_);
  sets_[id] = ranks;
}

void FlightRecorder::begin_anew(int set) {
  if (!is_on()) return;
  const std::lock_guard lock(mutex_);
  ++generations_[set];
  forget_names(set);
}

void FlightRecorder::forget_set(int id) {
  if (!is_on()) return;
  const std::lock_guard lock(mutex_);
  ended_sets_.push_back(id);
  if (ended_sets_.size() <= max_ended_sets) return;
  const int oldest = ended_sets_.front();
  ended_sets_.pop_front();
  sets_.erase(oldest);
  generations_.erase(oldest);
  forget_names(oldest);
}

void FlightRecorder::forget_names(int set) {
  const auto names = counts_.find(set);
  if (names == counts_.end()) return;
  name_count_ -= names->second.size();
  counts_.erase(names);
}

std::uint64_t FlightRecorder::count(int set, const std::string& name) {
  auto& names = counts_[set];
  if (const auto known = names.find(name); known != names.end()) return ++known->second;
  if (name_count_ == max_names) return 0;
  ++name_count_;
  return names[name] = 1;
}

FlightRecorder::Number FlightRecorder::submit(int set, const Request& request, Time when) {
  if (!is_on()) return 0;
  const std::lock_guard lock(mutex_);
  Operation& operation = open_[++last_];
  operation.number = last_;
  operation.set = set;
  operation.generation = generations_[set];
  operation.of_name = count(set, request.name);
  operation.request = request;
  operation.submitted = when;
  return last_;
}

void FlightRecorder::start(Number number) {
  if (number == 0) return;
  const std::lock_guard lock(mutex_);
  const auto open = open_.find(number);
  if (open == open_.end()) return;
  open->second.started = Clock::now();
  open->second.stage = Stage::running;
}

void FlightRecorder::end(Number number, const Status& status) {
  if (number == 0) return;
  const std::lock_guard lock(mutex_);
  auto open = open_.extract(number);
  if (open.empty()) return;
  Operation& operation = open.mapped();
  operation.ended = Clock::now();
  operation.stage = status.ok() ? Stage::done : Stage::failed;
  operation.code = status.code();
  if (!status.ok()) operation.error = status.to_string();
  if (ended_.size() < capacity_) {
    ended_.push_back(std::move(operation));
  } else if (capacity_ > 0) {
    ended_[ended_count_ % capacity_] = std::move(operation);
  }
  ++ended_count_;
}

bool FlightRecorder::is_cut_short(int set) const {
  const std::lock_guard lock(mutex_);
  const auto is_open = [set](const auto& entry) { return entry.second.set == set; };
  const auto was_refused = [set](const Operation& operation) {
    return operation.set == set && operation.code == ErrorCode::shutdown;
  };
  return std::any_of(open_.begin(), open_.end(), is_open) ||
         std::any_of(ended_.begin(), ended_.end(), was_refused);
}

void FlightRecorder::append(std::string& text, const Operation& operation) const {
  static constexpr std::string_view stages[] = {"submitted", "running", "done", "failed"};
  const Request& request = operation.request;
  text += str("{\"number\":", operation.number, ",\"set\":", operation.set,
              ",\"name\":", TraceFile::text(request.name), ",\"generation\":", operation.generation,
              ",\"of_name\":", operation.of_name, ",\"collective\":\"", name_of(request.collective),
              "\",\"dtype\":\"", name_of(request.dtype), "\",\"shape\":", list_of(request.shape),
              ",\"stage\":\"", stages[static_cast<std::size_t>(operation.stage)],
              "\",\"submitted\":", wall_clock(operation.submitted));
  const bool reduces = request.collective == Collective::allreduce ||
                       request.collective == Collective::reduce_scatter ||
                       request.collective == Collective::persistent_allreduce;
  if (reduces) text += str(",\"op\":\"", name_of(request.op), "\"");
  if (request.root >= 0) text += str(",\"root\":", request.root);
  if (operation.started != Time{}) text += str(",\"started\":", wall_clock(operation.started));
  if (operation.ended != Time{}) text += str(",\"ended\":", wall_clock(operation.ended));
  if (operation.code != ErrorCode::ok) {
    text += str(",\"code\":\"", name_of(operation.code),
                "\",\"error\":", TraceFile::text(operation.error));
  }
  text += '}';
}

std::string FlightRecorder::text_of(Occasion occasion, const std::string& why, int lost) const {
  static constexpr std::string_view occasions[] = {"request", "stall", "failure"};
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  std::string text =
      str("{\"rueda_flight_record\":1,\"rank\":", rank_, ",\"size\":", size_,
          ",\"host\":", TraceFile::text(host), ",\"pid\":", ::getpid(),
          ",\"written\":", wall_clock(Clock::now()), ",\"occasion\":\"",
          occasions[static_cast<std::size_t>(occasion)], "\",\"why\":", TraceFile::text(why));
  if (lost >= 0) text += str(",\"lost\":", lost);
  text += str(",\"forgotten\":", ended_count_ - ended_.size(), ",\"sets\":{");
  bool is_first = true;
  for (const auto& [id, ranks] : sets_) {
    text += str(std::exchange(is_first, false) ? "" : ",", "\"", id, "\":", list_of(ranks));
  }
  text += "},\"generations\":{";
  is_first = true;
  for (const auto& [id, generation] : generations_) {
    text += str(std::exchange(is_first, false) ? "" : ",", "\"", id, "\":", generation);
  }
  text += "},\"counts\":{";
  is_first = true;
  for (const auto& [id, names] : counts_) {
    text += str(std::exchange(is_first, false) ? "" : ",", "\"", id, "\":{");
    bool is_first_name = true;
    for (const auto& [name, count] : names) {
      text +=
          str(std::exchange(is_first_name, false) ? "" : ",", TraceFile::text(name), ":", count);
    }
    text += "}";
  }
  text += "},\"operations\":[";
  std::vector<const Operation*> operations;
  for (const Operation& operation : ended_) operations.push_back(&operation);
  for (const auto& [number, operation] : open_) operations.push_back(&operation);
  std::sort(operations.begin(), operations.end(),
            [](const auto* left, const auto* right) { return left->number < right->number; });
  is_first = true;
  for (const Operation* operation : operations) {
    text += std::exchange(is_first, false) ? "\n" : ",\n";
    append(text, *operation);
  }
  return text + "\n]}\n";
}

Status FlightRecorder::write(Occasion occasion, const std::string& why, int lost) const {
  if (!is_on()) {
    return {ErrorCode::invalid_argument,
            "the flight recorder is off: set RUEDA_FLIGHT_RECORDER to the folder for its records"};
  }
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    text = text_of(occasion, why, lost);
  }
  Status status = make_folders(folder_);
  if (status.ok()) status = replace_file(path_, text);
  return status.ok() ? status : not_written(status);
}

void FlightRecorder::dump(Occasion occasion, const Status& reason) const {
  if (!is_on()) return;
  const int lost = occasion == Occasion::failure ? reason.peer() : -1;
  if (const Status status = write(occasion, reason.to_string(), lost); !status.ok()) {
    log(LogLevel::error, status.message());
  }
}

}  // namespace rueda
