#include "transport/peer_paths.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/log.h"
#include "core/strings.h"

namespace rueda {

namespace {

// While connecting, how long one path is waited for before another has its turn.
constexpr Duration turn = std::chrono::milliseconds(50);
constexpr Duration flush_timeout = std::chrono::milliseconds(500);
// A path with a longer queue is given up while another keeps up: what is silent for half a minute
// must not fill memory.
constexpr std::size_t max_queued_bytes = std::size_t{16} << 20;

}  // namespace

PeerPaths::PeerPaths(int peer, const std::vector<std::string>& addresses,
                     const std::vector<std::string>& own_hosts,
                     const PeerConnection::Context& context)
    : peer_(peer), context_(context) {
  // Two ranks that have listed different numbers of interfaces use the first ones of both.
  const std::size_t shared =
      own_hosts.empty() ? addresses.size() : std::min(addresses.size(), own_hosts.size());
  const std::size_t count = std::clamp(shared, std::size_t{1}, PeerPath::max_paths);
  paths_.reserve(count);
  for (std::size_t path = 0; path < count; ++path) {
    const std::string own_host = count > 1 && path < own_hosts.size() ? own_hosts[path] : "";
    const std::string address = path < addresses.size() ? addresses[path] : "";
    paths_.push_back({PeerConnection({peer, path}, address, own_host, context)});
  }
}

bool PeerPaths::was_connected() const {
  return was_connected_ || std::any_of(paths_.begin(), paths_.end(), [](const Path& path) {
           return path.connection.was_connected();
         });
}

void PeerPaths::open() {
  is_opened_ = true;
  for (Path& path : paths_) {
    if (path.is_alive) path.connection.open(sent_);
  }
}

// One that is established is enough; the others may follow.
Status PeerPaths::finish_opening(Time deadline) {
  if (paths_.size() == 1) return paths_.front().connection.finish_opening(deadline);
  for (;;) {
    const Time now = Clock::now();
    Status failed;
    bool is_hopeless = true;
    for (Path& path : paths_) {
      if (!path.is_alive) continue;
      failed = path.connection.finish_opening(std::min(deadline, Clock::now() + turn));
      if (failed.ok()) return {};
      is_hopeless = is_hopeless && path.connection.is_suspect();
    }
    if (is_hopeless || now >= deadline) return failed;
  }
}

void PeerPaths::send(std::span<const std::byte> payload) {
  if (has_left_) return;
  open();
  for (Path& path : paths_) {
    if (path.is_alive) path.connection.send(payload);
  }
  ++sent_;
  if (paths_.size() > 1) limit_queues();
}

void PeerPaths::limit_queues() {
  const auto is_short = [](const Path& path) {
    return path.is_alive && path.connection.queued_bytes() <= max_queued_bytes / 2;
  };
  for (Path& path : paths_) {
    if (!path.is_alive || path.connection.queued_bytes() <= max_queued_bytes) continue;
    if (std::none_of(paths_.begin(), paths_.end(), is_short)) return;
    path.connection.give_up(Status(ErrorCode::transport, "it does not keep up with the others", -1,
                                   {.reason = ErrorReason::unreachable}));
  }
}

void PeerPaths::progress(std::size_t path, Watched source, std::uint32_t events) {
  paths_[path].connection.progress(source, events);
  note_departure(paths_[path]);
}

// Over which all comes that is missing.
bool PeerPaths::has_other(const Path& than) const {
  return std::any_of(paths_.begin(), paths_.end(), [&](const Path& path) {
    return &path != &than && path.is_alive && is_complete(path);
  });
}

bool PeerPaths::is_next(std::size_t path) {
  const std::uint64_t number = ++paths_[path].received;
  if (number != delivered_ + 1) return false;
  delivered_ = number;
  return true;
}

Status PeerPaths::resume(std::size_t path, std::uint64_t count) {
  Path& resumed = paths_[path];
  if (paths_.size() == 1 || count < resumed.received) {
    return Status(ErrorCode::transport, "it begins again where it must not");
  }
  resumed.received = count;
  if (!is_complete(resumed) && !has_other(resumed)) {
    return Status(ErrorCode::transport, "messages were lost with another connection");
  }
  if (std::exchange(resumed.is_reported, false)) {
    log(LogLevel::info,
        str("messages of rank ", peer_, " come from ", resumed.connection.address(), " again"));
  }
  return {};
}

bool PeerPaths::expects(std::uint64_t call) const {
  const std::size_t path = PeerConnection::path_of(call);
  if (has_left_ || path >= paths_.size() || !paths_[path].connection.is_new(call)) return false;
  // That the peer opens a path again tells that it has failed; this rank may not know yet.
  return paths_.size() > 1 || paths_[path].connection.expects_incoming();
}

void PeerPaths::admit(std::uint64_t call, SocketLink incoming) {
  Path& path = paths_[PeerConnection::path_of(call)];
  const bool again = !path.is_alive || !path.connection.expects_incoming();
  if (again) reopen(path);
  path.connection.admit(call, std::move(incoming));
  note_departure(path);
  if (again && is_opened_ && !has_left_) path.connection.open(sent_);
}

PeerPath PeerPaths::as_peer_path(const Path& path) const {
  return {peer_, static_cast<std::size_t>(&path - paths_.data())};
}

void PeerPaths::reopen(Path& path) {
  was_connected_ = was_connected();
  path.connection.renew();
  path.is_alive = true;
}

void PeerPaths::rest(Path& path, const Status& cause) {
  path.is_alive = false;
  path.reopens_at = Clock::now() + context_.reopen_pause;
  if (is_closing_) return;
  context_.on_pause(as_peer_path(path), context_.reopen_pause);
  if (std::exchange(path.is_reported, true)) return;
  log(LogLevel::warning,
      str("no messages to or from rank ", peer_, " at ", path.connection.address(), " (",
          cause.to_string(), "): they go over the other interfaces, and this one is tried again"));
}

Status PeerPaths::look_again(std::size_t index) {
  Path& path = paths_[index];
  if (path.is_alive) return path.connection.look_again();
  if (has_left_ || is_closing_) return {};
  const Time now = Clock::now();
  if (now < path.reopens_at) {
    context_.on_pause(as_peer_path(path), path.reopens_at - now);
    return {};
  }
  reopen(path);
  if (is_opened_) path.connection.open(sent_);
  return {};
}

void PeerPaths::note_end() {
  for (Path& path : paths_) path.connection.note_end();
}

// A good-bye comes after all messages of its path.
void PeerPaths::note_departure(Path& path) {
  if (has_left_ || !path.is_alive || !path.connection.has_left()) return;
  if (is_complete(path)) {
    has_left_ = true;
    for (Path& each : paths_) each.connection.drop();
    return;
  }
  path.is_alive = false;
  path.reopens_at = Time::max();
  if (has_other(path)) return;
  loss_ = Status(ErrorCode::transport, "messages were lost with another connection");
  context_.on_suspicion(as_peer_path(path));
}

std::optional<Status> PeerPaths::settle(std::size_t index) {
  if (has_left_) return {};
  Path& path = paths_[index];
  if (path.is_alive) {
    const auto cause = path.connection.settle();
    if (!cause) note_departure(path);
    if (has_left_) return {};
    if (cause && cause->details().reason != ErrorReason::ended && has_other(path)) {
      rest(path, *cause);
    } else if (cause) {
      path.is_alive = false;
      loss_ = cause;
    }
  }
  if (!loss_) return {};
  // The last messages, and perhaps the good-bye, may have come over others.
  for (Path& each : paths_) {
    if (!each.is_alive) continue;
    each.connection.catch_up();
    note_departure(each);
    if (has_left_) return {};
  }
  has_left_ = true;
  for (Path& each : paths_) each.connection.drop_by_reset();
  return loss_;
}

void PeerPaths::say_good_bye() {
  is_closing_ = true;
  for (Path& path : paths_) {
    if (path.is_alive) path.connection.say_good_bye();
  }
}

bool PeerPaths::is_flushed(Time now) {
  if (has_left_) return true;
  std::size_t alive = 0;
  std::size_t flushed = 0;
  for (const Path& path : paths_) {
    if (!path.is_alive) continue;
    ++alive;
    flushed += path.connection.is_flushed() ? 1 : 0;
  }
  if (flushed == alive) return true;
  if (flushed > 0 && !flushed_since_) flushed_since_ = now;
  return flushed_since_ && now - *flushed_since_ >= flush_timeout;
}

void PeerPaths::close() {
  for (Path& path : paths_) path.connection.close();
}

void PeerPaths::close_after_fork() {
  for (Path& path : paths_) path.connection.close_after_fork();
}

}  // namespace rueda
