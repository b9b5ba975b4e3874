#include "coordinator/trace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "core/log.h"
#include "core/strings.h"

namespace rueda {

namespace {

constexpr std::size_t flush_from = 64 << 10;
constexpr std::string_view separator = ",\n";

// Nothing where a trace may be written to it.
std::string objection_to(int fd) {
  struct stat facts{};
  if (::fstat(fd, &facts) != 0) return std::strerror(errno);
  if (S_ISREG(facts.st_mode) || S_ISCHR(facts.st_mode)) return {};
  return "it is a pipe, a socket or a device, not a file";
}

// A file of its own, since a process that still writes to one of this name would mix its events
// with these: what is there goes. Only where it has to stay, as in a folder that cannot be written
// to, or what a link leads to, it is overwritten. -1 with errno where neither is possible.
int open_new(const char* path) {
  struct stat there{};
  if (::lstat(path, &there) == 0 && S_ISREG(there.st_mode)) ::unlink(path);
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC;
  const int fd = ::open(path, flags | O_EXCL, 0666);
  if (fd >= 0 || errno != EEXIST) return fd;
  // Without O_NONBLOCK a FIFO that nobody reads would be waited for.
  return ::open(path, flags | O_TRUNC | O_NONBLOCK, 0666);
}

}  // namespace

Status TraceFile::open(const std::string& path) {
  fd_.reset(open_new(path.c_str()));
  std::string problem;
  if (!fd_) {
    problem = errno == ENXIO ? "it is a pipe that nobody reads" : std::strerror(errno);
  } else {
    problem = objection_to(fd_.get());
  }
  if (!problem.empty()) {
    fd_.reset();
    return {ErrorCode::initialization,
            str("the timeline cannot be written to '", path, "': ", problem)};
  }
  ::fcntl(fd_.get(), F_SETFL, 0);  // a terminal may be slow
  path_ = path;
  pending_.clear();
  has_failed_ = false;
  start_ = Clock::now();
  is_empty_ = true;
  return {};
}

void TraceFile::close() {
  if (!fd_) return;
  flush();
  const std::string_view end = is_empty_ ? "[\n]\n" : "\n]\n";
  if (has_failed_) {  // there may be room for this, since the last event was cut off
    [[maybe_unused]] const auto written = ::write(fd_.get(), end.data(), end.size());
  } else {
    pending_ = end;
    flush();
  }
  fd_.reset();
}

void TraceFile::write(std::string_view members) {
  if (has_failed_) return;
  pending_ += is_empty_ ? std::string_view("[\n") : separator;
  pending_ += '{';
  pending_ += members;
  pending_ += '}';
  is_empty_ = false;
  if (pending_.size() >= flush_from) flush();
}

void TraceFile::flush() {
  if (!fd_ || has_failed_) return;
  const std::size_t taken = write_pending();
  if (taken < pending_.size()) give_up(taken, errno);
  pending_.clear();
}

std::size_t TraceFile::write_pending() {
  std::size_t taken = 0;
  while (taken < pending_.size()) {
    const auto count = ::write(fd_.get(), pending_.data() + taken, pending_.size() - taken);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    taken += static_cast<std::size_t>(count);
  }
  return taken;
}

void TraceFile::give_up(std::size_t taken, int error) {
  has_failed_ = true;
  const off_t end = ::lseek(fd_.get(), 0, SEEK_CUR);
  // Texts have no raw line ends, so this stands between events only.
  const auto cut = std::string_view(pending_).substr(0, taken).rfind(separator);
  const std::size_t kept = cut == std::string::npos ? 0 : cut;
  const off_t whole = end - static_cast<off_t>(taken - kept);
  if (end >= 0 && whole >= 0 && ::ftruncate(fd_.get(), whole) == 0) {
    ::lseek(fd_.get(), whole, SEEK_SET);
    is_empty_ = whole == 0;
  }
  log(LogLevel::error, "the timeline '", path_,
      "' cannot be written any further: ", std::strerror(error), "; it ends here");
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
