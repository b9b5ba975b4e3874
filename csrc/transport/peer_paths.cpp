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

using Ending = PeerConnection::Ending;

// What a hello says of the connection: its path, and how often that was opened before.
std::uint64_t call_of(std::size_t path, std::uint32_t number) {
  return static_cast<std::uint64_t>(path) << 32 | number;
}
std::size_t path_of(std::uint64_t call) {
  return static_cast<std::size_t>(call >> 32);
}
std::uint32_t number_of(std::uint64_t call) {
  return static_cast<std::uint32_t>(call);
}

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
    paths_.push_back({PeerConnection({peer, path}, address, own_host, context), address});
  }
}

bool PeerPaths::was_connected() const {
  return was_connected_ || std::any_of(paths_.begin(), paths_.end(), [](const Path& path) {
           return path.connection.state().was_connected;
         });
}

void PeerPaths::open() {
  is_opened_ = true;
  for (Path& path : paths_) {
    if (path.is_alive) open(path);
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
      is_hopeless = is_hopeless && path.connection.state().is_suspect;
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
    const PeerConnection::State state = path.connection.state();
    return path.is_alive && state.was_connected && !state.is_suspect &&
           state.queued_bytes <= max_queued_bytes / 2;
  };
  for (Path& path : paths_) {
    if (!path.is_alive || path.connection.state().queued_bytes <= max_queued_bytes) continue;
    if (std::none_of(paths_.begin(), paths_.end(), is_short)) return;
    path.connection.give_up(Status(ErrorCode::transport, "it does not keep up with the others", -1,
                                   {.reason = ErrorReason::unreachable}));
  }
}

void PeerPaths::progress(std::size_t path, Watched source, std::uint32_t events) {
  paths_[path].connection.progress(source, events);
  note_return(paths_[path]);
  note_departure(paths_[path]);
}

bool PeerPaths::carries(const Path& path) const {
  if (!path.is_alive) return false;
  return path.connection.state().was_connected || (is_opened_ && !path.is_retried);
}

// Over which all comes that is missing.
bool PeerPaths::has_other(const Path& than) const {
  return std::any_of(paths_.begin(), paths_.end(), [&](const Path& path) {
    return &path != &than && carries(path) && is_complete(path);
  });
}

bool PeerPaths::is_next(std::size_t index) {
  const std::uint64_t number = ++paths_[index].received;
  if (number != delivered_ + 1) return false;
  delivered_ = number;
  for (const Path& path : paths_) {
    // Over which the peer has said good-bye: settle() concludes it, not in the middle of a frame.
    if (path.has_departed && is_complete(path)) context_.on_suspicion(as_peer_path(path));
  }
  return true;
}

Status PeerPaths::resume(std::size_t path, std::uint64_t count) {
  Path& resumed = paths_[path];
  if (paths_.size() == 1 || count < resumed.received) {
    return Status(ErrorCode::transport, "it resumed at an invalid position");
  }
  resumed.received = count;
  if (!is_complete(resumed) && !has_other(resumed)) {
    return Status(ErrorCode::transport, "messages were lost with another connection");
  }
  return {};
}

bool PeerPaths::expects(std::uint64_t call) const {
  if (has_left_ || path_of(call) >= paths_.size()) return false;
  const Path& path = paths_[path_of(call)];
  if (path.admitted && number_of(call) <= *path.admitted) return false;
  // That the peer opens a path again tells that it has failed; this rank may not know yet.
  return paths_.size() > 1 || !path.connection.state().has_incoming;
}

void PeerPaths::admit(std::uint64_t call, SocketLink incoming) {
  Path& path = paths_[path_of(call)];
  path.admitted = number_of(call);
  if (path.is_alive && path.connection.state().has_incoming) {
    path.connection.catch_up();  // the last of what came over the one before
    note_departure(path);
    if (has_left_) return;
  }
  const PeerConnection::State state = path.connection.state();
  const bool again =
      paths_.size() > 1 && (!path.is_alive || state.has_incoming || state.is_given_up);
  if (again) renew(path);
  path.connection.admit(std::move(incoming));
  note_return(path);
  note_departure(path);
  if (!again || !is_opened_ || has_left_) return;
  open(path);
  if (is_closing_) path.connection.say_good_bye();
}

PeerPath PeerPaths::as_peer_path(const Path& path) const {
  return {peer_, static_cast<std::size_t>(&path - paths_.data())};
}

void PeerPaths::open(Path& path) {
  path.connection.open(call_of(as_peer_path(path).number, path.renewals), sent_);
}

void PeerPaths::renew(Path& path) {
  was_connected_ = was_connected();
  path.connection.renew();
  ++path.renewals;
  path.is_alive = true;
  path.is_retried = true;
}

void PeerPaths::suspend(Path& path, const Status& cause) {
  path.is_alive = false;
  path.reopens_at = Clock::now() + context_.reopen_pause;
  if (is_closing_) return;
  context_.on_pause(as_peer_path(path), context_.reopen_pause);
  if (std::exchange(path.is_reported, true)) return;
  log(LogLevel::warning,
      str("no messages to or from rank ", peer_, " at ", path.address, " (", cause.to_string(),
          "): they go over the other interfaces, and this one is tried again"));
}

void PeerPaths::note_return(Path& path) {
  if (!path.is_alive || !path.is_reported || !path.connection.state().was_connected) return;
  path.is_reported = false;
  log(LogLevel::info, str("messages to or from rank ", peer_, " go over ", path.address, " again"));
}

Status PeerPaths::look_again(std::size_t index) {
  Path& path = paths_[index];
  if (path.is_alive) {
    Status stuck = path.connection.look_again();
    if (stuck.ok() || !has_other(path)) return stuck;
    path.connection.drop(Ending::reset);
    suspend(path, stuck);
    return {};
  }
  // Another call comes at the time to reopen it.
  if (has_left_ || is_closing_ || Clock::now() < path.reopens_at) return {};
  renew(path);
  if (is_opened_) open(path);
  return {};
}

void PeerPaths::note_end() {
  for (Path& path : paths_) path.connection.note_end();
}

// A good-bye comes after all messages of its path, unless the peer has said it to one that it had
// not let in: then those of other paths may still be on their way.
void PeerPaths::note_departure(Path& path) {
  if (has_left_ || !path.is_alive || !path.connection.state().has_left) return;
  has_said_good_bye_ = true;
  const bool is_last = path.connection.state().was_connected || !was_connected();
  if (is_last && is_complete(path)) return leave();
  path.is_alive = false;
  path.reopens_at = Time::max();
  path.has_departed = is_last;
  if (has_other(path)) return;
  if (is_complete(path)) return leave();
  loss_ = Status(ErrorCode::transport, "messages were lost with another connection");
  context_.on_suspicion(as_peer_path(path));
}

void PeerPaths::leave() {
  has_left_ = true;
  for (Path& path : paths_) path.connection.drop(Ending::close);
}

std::optional<Status> PeerPaths::settle(std::size_t index) {
  if (has_left_) return {};
  Path& path = paths_[index];
  if (path.has_departed && is_complete(path)) {
    leave();
    return {};
  }
  if (path.is_alive) {
    const auto cause = path.connection.settle();
    if (!cause) note_departure(path);
    if (has_left_) return {};
    if (cause && cause->details().reason != ErrorReason::ended && has_other(path)) {
      suspend(path, *cause);
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
  if (has_said_good_bye_ && std::all_of(paths_.begin(), paths_.end(),
                                        [this](const Path& each) { return is_complete(each); })) {
    leave();
    return {};
  }
  has_left_ = true;
  for (Path& each : paths_) each.connection.drop(Ending::reset);
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
  if (paths_.size() == 1)
    return !paths_.front().is_alive || paths_.front().connection.state().is_flushed;
  std::size_t alive = 0;
  std::size_t flushed = 0;
  for (const Path& path : paths_) {
    if (!path.is_alive) continue;
    ++alive;
    const PeerConnection::State state = path.connection.state();
    flushed += state.is_flushed && !state.is_suspect ? 1 : 0;
  }
  if (flushed == alive) return true;
  if (flushed == 0) flushed_since_.reset();
  if (flushed > 0 && !flushed_since_) flushed_since_ = now;
  return flushed_since_ && now - *flushed_since_ >= flush_timeout;
}

// What ends in the middle would be taken for the end of this process, whatever the other paths say.
void PeerPaths::close() {
  const bool more_to_come = std::any_of(paths_.begin(), paths_.end(), [](const Path& path) {
    return path.connection.state().is_sending;
  });
  for (Path& path : paths_) {
    const bool is_whole = paths_.size() == 1 || path.connection.state().is_flushed;
    if (is_whole) {
      path.connection.close(more_to_come);
    } else {
      path.connection.drop(Ending::reset);
    }
  }
}

void PeerPaths::close_after_fork() {
  for (Path& path : paths_) path.connection.close_after_fork();
}

}  // namespace rueda
