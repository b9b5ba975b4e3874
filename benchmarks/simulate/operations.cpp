#include "operations.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "tcp/outgoing_messages.h"

namespace rueda::simulate {

namespace {

// Whom the news that a stage is over comes from.
constexpr int nobody = -1;

}  // namespace

Time SimulatedOperation::send(int to, SimulatedOperation*& peer, std::int64_t bytes) {
  ++messages_sent_;
  bytes_sent_ += bytes;
  const Time at = clock();
  const Time arrival = fabric_.links.send_data(rank_, to, bytes, at);
  if (peer == nullptr) peer = fabric_.mailboxes[static_cast<std::size_t>(to)].find(key_);
  Event event{EventKind::data, static_cast<std::uint32_t>(to), rank_, key_};
  if (peer != nullptr) {
    event.kind = EventKind::direct;
    event.key = std::bit_cast<std::uintptr_t>(peer);
  }
  fabric_.timeline.add(arrival, event);
  // Short ones are copied, of others the receiver tells that they have arrived.
  if (bytes <= static_cast<std::int64_t>(OutgoingMessages::max_copied_bytes)) return at;
  const bool stays = fabric_.links.host_of(rank_) == fabric_.links.host_of(to);
  return arrival + nanoseconds(stays ? 0 : fabric_.costs.link.latency);
}

void SimulatedOperation::wake_at(Time at) const {
  fabric_.timeline.add(at, {EventKind::wake, static_cast<std::uint32_t>(rank_), nobody, key_});
}

// --- Ring

SimulatedRing::SimulatedRing(Fabric& fabric, int rank, std::uint64_t key, const RingPlan& plan,
                             const std::vector<int>& members, std::int64_t element)
    : SimulatedOperation(fabric, rank, key),
      plan_(plan),
      hops_(plan.hops()),
      element_(element),
      next_(members[static_cast<std::size_t>(plan.next())]),
      progress_(plan),
      done_(hops_ == 0) {
  const int previous = members[static_cast<std::size_t>(plan.previous())];
  while (mailbox().take(key_, previous)) ++arrived_;
  look_at_next_receive();
}

void SimulatedRing::look_at_next_receive() {
  if (progress_.received() == hops_) return;
  const Hop hop = plan_.hop(progress_.received());
  receive_bytes_ = hop.recv.count * element_;
  reduces_ = hop.reduces;
}

bool SimulatedRing::advance() {
  bool moved = false;
  for (bool again = !done_; again;) {
    again = false;
    for (; progress_.may_post_receive(); again = true) progress_.post_receive();
    again = post_sends() || again;
    again = take_receives() || again;
    again = take_sends() || again;
    moved = moved || again;
  }
  if (!done_ && progress_.is_over()) {
    done_ = true;
    return true;
  }
  if (!done_) wake_for_sends();
  return moved;
}

bool SimulatedRing::post_sends() {
  bool moved = false;
  for (; progress_.may_post_send(); moved = true) {
    const std::int64_t bytes = plan_.hop(progress_.sends_posted()).send.count * element_;
    progress_.post_send();
    // An empty chunk does not travel.
    const Time now = clock();
    const Time over = bytes > 0 ? send(next_, next_operation_, bytes) : now;
    if (over <= now && sending_.empty()) {
      progress_.finish_send();
    } else {
      sending_.push_back(over);
    }
  }
  return moved;
}

bool SimulatedRing::take_receives() {
  bool moved = false;
  for (; progress_.received() < progress_.receives_posted(); moved = true) {
    if (receive_bytes_ > 0) {
      if (arrived_ == 0) return moved;
      --arrived_;
    }
    if (reduces_) {
      spend(fabric_.costs.reduce * static_cast<double>(receive_bytes_));
    }
    progress_.receive();
    look_at_next_receive();
  }
  return moved;
}

bool SimulatedRing::take_sends() {
  if (sending_.empty()) return false;
  const Time now = clock();
  const auto open =
      std::find_if(sending_.begin(), sending_.end(), [&](Time over) { return over > now; });
  for (auto send = sending_.begin(); send != open; ++send) progress_.finish_send();
  const bool moved = open != sending_.begin();
  sending_.erase(sending_.begin(), open);
  return moved;
}

// Where nothing will arrive before a send is over.
void SimulatedRing::wake_for_sends() {
  const bool awaits_message = progress_.received() < progress_.receives_posted();
  if (!awaits_message && !sending_.empty()) wake_at(sending_.front());
}

// --- Recursive doubling and halving

SimulatedRecursion::SimulatedRecursion(Fabric& fabric, int rank, std::uint64_t key,
                                       RecursivePlan plan, const std::vector<int>& members,
                                       std::int64_t element)
    : SimulatedOperation(fabric, rank, key),
      members_(members),
      element_(element),
      plan_(std::move(plan)) {}

bool SimulatedRecursion::advance() {
  bool moved = false;
  while (!done()) {
    const Exchange& exchange = plan_.exchanges[next_];
    const int peer = members_[static_cast<std::size_t>(exchange.peer)];
    const Time now = clock();
    if (!begun_) {
      begun_ = true;
      received_ = exchange.receives.count == 0;
      SimulatedOperation* peers = nullptr;
      const std::int64_t bytes = exchange.sends.count * element_;
      sent_ = bytes > 0 ? send(peer, peers, bytes) : now;
      if (sent_ > now) wake_at(sent_);
      moved = true;
    }
    if (!received_) received_ = mailbox().take(key_, peer);
    if (!received_ || sent_ > now) return moved;
    if (exchange.combines) {
      spend(fabric_.costs.reduce * static_cast<double>(exchange.receives.count * element_));
    }
    begun_ = false;
    ++next_;
    moved = true;
  }
  return moved;
}

// --- Tree

SimulatedTree::SimulatedTree(Fabric& fabric, int rank, std::uint64_t key, int tree, int place,
                             const std::vector<int>& members, std::int64_t bytes,
                             std::int64_t chunk)
    : SimulatedOperation(fabric, rank, key),
      bytes_(bytes),
      chunk_(chunk),
      place_(place_in_tree(tree, place, static_cast<int>(members.size()))),
      progress_(place_, (bytes + chunk - 1) / chunk),
      done_(bytes == 0) {
  const auto member = [&](int index) { return members[static_cast<std::size_t>(index)]; };
  if (!place_.is_root()) parent_.rank = member(place_.parent);
  for (const int child : place_.children) children_.push_back({member(child)});
}

std::int64_t SimulatedTree::bytes(std::int64_t chunk) const {
  return std::min(chunk_, bytes_ - chunk * chunk_);
}

bool SimulatedTree::send(Peer& peer, TreeProgress::Flow& flow) {
  const Time over = SimulatedOperation::send(peer.rank, peer.operation, bytes(flow.posted()));
  flow.post();
  if (over > clock()) wake_at(over);
  peer.sending.push_back(over);
  return true;
}

bool SimulatedTree::take_sends(Peer& peer, TreeProgress::Flow& flow) {
  bool moved = false;
  for (; !peer.sending.empty() && peer.sending.front() <= clock(); moved = true) {
    peer.sending.erase(peer.sending.begin());
    flow.finish();
  }
  return moved;
}

bool SimulatedTree::advance() {
  bool moved = false;
  for (bool again = !done_; again; moved = moved || again) {
    again = move_up();
    again = move_down() || again;
    done_ = progress_.is_over();
    if (done_) return true;
  }
  return moved;
}

bool SimulatedTree::move_up() {
  bool moved = false;
  for (std::size_t child = 0; child < children_.size(); ++child) {
    TreeProgress::Flow& flow = progress_.from_child(child);
    for (; progress_.may_receive_from_child(child); moved = true) flow.post();
    while (flow.over() < flow.posted() && progress_.may_combine(child) &&
           mailbox().take(key_, children_[child].rank)) {
      spend(fabric_.costs.reduce * static_cast<double>(bytes(flow.over())));
      flow.finish();
      moved = true;
    }
  }
  while (progress_.may_send_to_parent()) moved = send(parent_, progress_.to_parent());
  return take_sends(parent_, progress_.to_parent()) || moved;
}

bool SimulatedTree::move_down() {
  bool moved = false;
  TreeProgress::Flow& from = progress_.from_parent();
  for (; progress_.may_receive_from_parent(); moved = true) from.post();
  for (; from.over() < from.posted() && mailbox().take(key_, parent_.rank); moved = true) {
    from.finish();
  }
  for (std::size_t child = 0; child < children_.size(); ++child) {
    TreeProgress::Flow& to = progress_.to_child(child);
    while (progress_.may_send_to_child(child)) moved = send(children_[child], to);
    moved = take_sends(children_[child], to) || moved;
  }
  return moved;
}

// --- Stages within a host

void HostStages::begin(Timeline& timeline, int host, int rank, std::size_t members,
                       std::uint64_t key, std::int64_t bytes, Time at) {
  Host& here = hosts_[static_cast<std::size_t>(host)];
  auto open = std::find_if(here.open.begin(), here.open.end(),
                           [&](const Open& stage) { return stage.key == key; });
  if (open == here.open.end()) open = here.open.insert(open, {key, at, {}});
  open->latest = std::max(open->latest, at);
  open->ranks.push_back(rank);
  if (open->ranks.size() < members) return;
  const double work = costs_.memory_latency + costs_.memory * static_cast<double>(bytes);
  here.free = std::max(here.free, open->latest) + nanoseconds(work);
  for (const int member : open->ranks) {
    timeline.add(here.free, {EventKind::data, static_cast<std::uint32_t>(member), nobody, key});
  }
  here.open.erase(open);
}

SimulatedStage::SimulatedStage(Fabric& fabric, int rank, std::uint64_t key, HostStages& stages,
                               std::size_t members, std::int64_t bytes)
    : SimulatedOperation(fabric, rank, key) {
  stages.begin(fabric.timeline, fabric.links.host_of(rank), rank, members, key, bytes, clock());
}

bool SimulatedStage::advance() {
  if (done_) return false;
  done_ = mailbox().take(key_, nobody);
  return done_;
}

}  // namespace rueda::simulate
