#include "tcp/tcp_transport.h"

#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/log.h"
#include "core/strings.h"
#include "core/wait_fd.h"
#include "tcp/tcp_peer.h"
#include "transport/interface_listeners.h"
#include "transport/pending_handshakes.h"

namespace rueda {

namespace {

using namespace std::chrono_literals;

// How long an ending process waits for its last messages to leave the host.
constexpr Duration flush_timeout = 2s;

// The tag of an operation with all its parts.
Tag whole(Tag tag) {
  tag.part = 0;
  return tag;
}

class TcpTransport final : public Transport {
 public:
  // `addresses`: of each rank, one per interface.
  TcpTransport(int rank, std::vector<std::vector<std::string>> addresses,
               std::vector<Listener> listeners, std::vector<std::string> own_hosts, const Key& key);
  ~TcpTransport() override;

  // Must be called first.
  Status open();

  [[nodiscard]] std::string_view name() const override { return "tcp"; }
  [[nodiscard]] int rank() const override { return handshake_.rank(); }
  [[nodiscard]] int size() const override { return handshake_.size(); }

  Ticket send(int peer, Tag tag, std::span<const ConstBytes> spans) override;
  Ticket recv(int peer, Tag tag, std::span<const MutableBytes> spans) override {
    Ticket ticket = at(peer).recv(tag, spans);
    note_much(peer);
    return ticket;
  }
  void set_priority(Tag tag, std::int32_t priority) override;
  bool progress() override;
  [[nodiscard]] bool has_work() const override;
  void end_in_order() override {
    for (const auto& peer : peers_) peer->end_in_order();
  }

  [[nodiscard]] int wait_fd() const override { return watched_.fd(); }
  bool arm() override;
  void disarm() override {}
  [[nodiscard]] bool awaits_much() const override { return much_ > 0; }

  void fail(int peer, const Status& why) override {
    at(peer).fail(why);
    note_much(peer);
  }
  void abort(const Status& reason) override {
    for (int peer = 0; peer < size(); ++peer) fail(peer, reason);
  }

 private:
  TcpPeer& at(int peer) { return *peers_[static_cast<std::size_t>(peer)]; }
  void handle_event(const EpollSet<TcpWatched>::Event& event);
  void mark_active(int peer);
  void note_much(int peer);
  void call_at(Time time);
  void handle_timer();

  const Handshake handshake_;
  const Key stream_key_;
  EpollSet<TcpWatched> watched_;
  UniqueFd timer_;
  Time timer_at_ = Time::max();
  const TcpPeer::Context context_;
  std::vector<std::unique_ptr<TcpPeer>> peers_;
  PendingHandshakes pending_;
  std::vector<int> active_;                           // peers with news or with work left
  std::unordered_map<Tag, std::int32_t> priorities_;  // of whole operations; only if nonzero
  std::vector<char> is_active_;                       // by peer: whether it is in active_
  std::vector<char> awaits_much_;                     // by peer, after its last progress
  int much_ = 0;                                      // how many of these
};

TcpTransport::TcpTransport(int rank, std::vector<std::vector<std::string>> addresses,
                           std::vector<Listener> listeners, std::vector<std::string> own_hosts,
                           const Key& key)
    : handshake_("ruedatcp", key.derive({"handshake"}), rank, static_cast<int>(addresses.size())),
      stream_key_(key.derive({"stream"})),
      context_{rank,
               handshake_,
               stream_key_,
               watched_,
               [this](Time time) { call_at(time); },
               std::move(own_hosts)},
      pending_("data links", handshake_, std::move(listeners),
               {[this](int peer, std::uint64_t) { return at(peer).expects_stream(); },
                [this](int peer, std::uint64_t, SocketLink link) {
                  at(peer).admit(std::move(link));
                  mark_active(peer);
                }}) {
  is_active_.resize(addresses.size());
  awaits_much_.resize(addresses.size());
  for (int peer = 0; peer < size(); ++peer) {
    auto& of_peer = addresses[static_cast<std::size_t>(peer)];
    peers_.push_back(std::make_unique<TcpPeer>(peer, std::move(of_peer), context_));
  }
}

Status TcpTransport::open() {
  timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer_ || !watched_.open() || !pending_.open()) {
    return system_error("cannot make the links over TCP", errno);
  }
  watched_.add(timer_.get(), EPOLLIN, TcpWatched::timer);
  watched_.add(pending_.wait_fd(), EPOLLIN, TcpWatched::handshakes);
  return {};
}

// Messages whose senders were told that they are sent still have to leave the host.
TcpTransport::~TcpTransport() {
  const Time deadline = Clock::now() + flush_timeout;
  for (const auto& peer : peers_) peer->close();
  const auto is_flushed = [](const auto& peer) { return peer->is_flushed(); };
  while (!std::all_of(peers_.begin(), peers_.end(), is_flushed) && Clock::now() < deadline) {
    if (!progress()) wait_readable(watched_.fd(), Clock::now() + 1ms);
  }
}

Ticket TcpTransport::send(int peer, Tag tag, std::span<const ConstBytes> spans) {
  if (peer == rank()) return at(peer).send_to_itself(tag, spans);
  const auto priority = priorities_.find(whole(tag));
  return at(peer).send(tag, spans, priority == priorities_.end() ? 0 : priority->second);
}

void TcpTransport::set_priority(Tag tag, std::int32_t priority) {
  if (priority == 0) {
    priorities_.erase(whole(tag));
  } else {
    priorities_[whole(tag)] = priority;
  }
}

bool TcpTransport::has_work() const {
  return std::any_of(active_.begin(), active_.end(), [this](int peer) {
    return peers_[static_cast<std::size_t>(peer)]->has_unread();
  });
}

bool TcpTransport::progress() {
  bool moved = false;
  watched_.for_each_ready([&](const auto& event) { handle_event(event); });
  const Time now = active_.empty() ? Time() : Clock::now();
  const auto active = std::exchange(active_, {});
  for (const int peer : active) {
    is_active_[static_cast<std::size_t>(peer)] = 0;
    moved = at(peer).progress(now) || moved;
    note_much(peer);
    if (at(peer).has_work()) mark_active(peer);
  }
  return moved;
}

void TcpTransport::handle_event(const EpollSet<TcpWatched>::Event& event) {
  switch (event.source) {
    case TcpWatched::handshakes: return pending_.progress();
    case TcpWatched::timer: return handle_timer();
    case TcpWatched::outgoing:
    case TcpWatched::incoming:
      const int peer = TcpPeer::peer_of(event.index);
      at(peer).mark_ready(event.source, event.index, event.events);
      mark_active(peer);
  }
}

void TcpTransport::mark_active(int peer) {
  if (std::exchange(is_active_[static_cast<std::size_t>(peer)], char{1}) == 0)
    active_.push_back(peer);
}

void TcpTransport::note_much(int peer) {
  const char now = at(peer).awaits_much() ? 1 : 0;
  const char before = std::exchange(awaits_much_[static_cast<std::size_t>(peer)], now);
  much_ += now - before;
}

void TcpTransport::call_at(Time time) {
  if (time >= timer_at_) return;
  timer_at_ = time;
  const auto wait = std::max<Duration>(time - Clock::now(), 1us);
  itimerspec setting{};
  setting.it_value.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(wait).count();
  setting.it_value.tv_nsec = (wait % std::chrono::seconds(1)).count();
  ::timerfd_settime(timer_.get(), 0, &setting, nullptr);
}

void TcpTransport::handle_timer() {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(timer_.get(), &count, sizeof count);
  timer_at_ = Time::max();
  for (int peer = 0; peer < size(); ++peer) mark_active(peer);
}

// Anything ready by now keeps wait_fd() readable, so a sleeper on it wakes at once.
bool TcpTransport::arm() {
  return active_.empty();
}

// What a rank announces: a random word and its addresses. Rank 0's word distinguishes this world
// from all earlier ones.
std::string contact_text(const InterfaceListeners& own) {
  std::string text = random_name();
  for (const Listener& listener : own.listeners) text += " " + listener.address;
  return text;
}

}  // namespace

Expected<std::unique_ptr<Transport>> open_tcp_transport(Bootstrap& bootstrap,
                                                        const std::string& interface,
                                                        Time deadline) {
  using Text = Expected<std::string>;
  const Status failed(ErrorCode::initialization, "the links over TCP cannot be made");
  auto own = listen_on_interfaces(interface);
  const auto told =
      bootstrap.allgather("tcp", own ? Text(contact_text(*own)) : Text(own.status()), deadline);
  if (!own) return failed.because(own.status());
  if (!told) return failed.because(told.status());
  std::vector<std::vector<std::string>> addresses;
  for (const std::string& text : told.value()) {
    std::vector<std::string> words = words_of(text);
    if (words.size() < 2) {
      return failed.because(Status(ErrorCode::initialization, "a rank sent no address"));
    }
    words.erase(words.begin());
    addresses.push_back(std::move(words));
  }
  const std::string word = words_of(told->front()).front();
  const Key key = Key(bootstrap.secret()).derive({"rueda tcp links", word});
  auto transport =
      std::make_unique<TcpTransport>(bootstrap.rank(), std::move(addresses),
                                     std::move(own->listeners), std::move(own->hosts), key);
  if (const Status opened = transport->open(); !opened.ok()) return failed.because(opened);
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace rueda
