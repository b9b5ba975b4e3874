#include "plan/round_agreement.h"

#include <algorithm>

#include "plan/negotiation_message.h"

namespace rueda {

namespace {

// Limit on the results in one message: beyond it, ready rounds are fused instead of sending more to
// every host.
constexpr std::size_t max_result_bytes = 16 << 10;

RoundAgreement::Bytes read_bytes(Reader& reader) {
  const auto bytes = reader.block();
  return {bytes.begin(), bytes.end()};
}

void write_plans(Writer& writer, const std::vector<std::uint64_t>& plans) {
  writer.unsigned_integer(plans.size());
  for (const std::uint64_t plan : plans) writer.unsigned_integer(plan);
}

std::vector<std::uint64_t> read_plans(Reader& reader) {
  std::vector<std::uint64_t> plans(reader.size());
  for (std::uint64_t& plan : plans) plan = reader.unsigned_integer();
  return plans;
}

}  // namespace

// --- What this host says

void RoundAgreement::ready(std::uint64_t plan, Bytes sent, Urgency urgency) {
  if (has_ended_) return;
  own_[plan] = {urgency, sent.size()};
  static_cast<void>(add_ready(host_, plan, std::move(sent)));
}

void RoundAgreement::cancel(std::uint64_t plan) {
  if (!has_ended_) add_cancelled(plan);
}

void RoundAgreement::end() {
  (tree_.is_root() ? down_.ends : up_.ends) = true;
}

bool RoundAgreement::add_ready(int host, std::uint64_t plan, Bytes sent) {
  auto& said = ready_[plan];
  if (!said.emplace(host, std::move(sent)).second) return false;
  if (said.size() <= tree_.children().size()) return true;
  // What another host has sent along is as long as this host's, or does not belong to this plan.
  const std::size_t length = own_.at(plan).bytes;
  const auto is_as_long = [&](const auto& one) { return one.second.size() == length; };
  const bool is_whole = combine_ && length > 0 &&
                        std::all_of(said.begin(), said.end(), is_as_long) &&
                        (!tree_.is_root() || result_bytes_ + length <= max_result_bytes);
  Bytes combined;
  if (is_whole) {
    std::vector<Bytes> all;
    for (auto& [top, bytes] : said) all.push_back(std::move(bytes));
    combined = combine_(plan, std::move(all), tree_.is_root());
  }
  ready_.erase(plan);
  if (tree_.is_root()) {
    result_bytes_ += combined.size();
    down_.decisions.push_back({plan, true, false, std::move(combined)});
  } else {
    up_.ready.push_back({plan, std::move(combined)});
  }
  return true;
}

// The root's own decisions take effect immediately, though they travel with the next flush.
void RoundAgreement::add_cancelled(std::uint64_t plan) {
  if (!tree_.is_root()) return up_.cancelled.push_back(plan);
  if (!cancelled_.emplace(plan, messages_down_ + 1).second) return;
  ready_.erase(plan);
  down_.decisions.push_back({plan, false});
}

// --- Messages

bool RoundAgreement::receive(int host, std::span<const std::byte> message) {
  Reader reader(message);
  const auto kind = static_cast<MessageKind>(reader.byte());
  const std::vector<int> children = tree_.children();
  if (std::find(children.begin(), children.end(), host) != children.end()) {
    return kind == MessageKind::rounds_up && receive_up(host, reader);
  }
  if (tree_.is_root() || host != tree_.parent() || kind != MessageKind::rounds_down) return false;
  for (const int child : children) outgoing_.push_back({child, {message.begin(), message.end()}});
  return receive_down(reader);
}

bool RoundAgreement::receive_up(int child, Reader& reader) {
  const std::uint64_t known = reader.unsigned_integer();
  const std::uint8_t ends = reader.byte();
  std::vector<ReadySubtree> ready(reader.size());
  for (ReadySubtree& subtree : ready) {
    subtree.plan = reader.unsigned_integer();
    subtree.sent = read_bytes(reader);
  }
  const std::vector<std::uint64_t> cancelled = read_plans(reader);
  if (!reader.ok() || !reader.at_end() || ends > 1 || known > messages_down_) return false;
  if (has_ended_) return true;
  known_below_[child] = known;
  std::erase_if(cancelled_, [&](const auto& plan) {
    const std::vector<int> children = tree_.children();
    return std::all_of(children.begin(), children.end(),
                       [&](int node) { return known_below_[node] >= plan.second; });
  });
  for (ReadySubtree& subtree : ready) {
    if (is_late(child, subtree.plan)) continue;
    if (!add_ready(child, subtree.plan, std::move(subtree.sent))) return false;
  }
  for (const std::uint64_t plan : cancelled) {
    if (!is_late(child, plan)) add_cancelled(plan);
  }
  if (ends == 1) end();
  return true;
}

bool RoundAgreement::is_late(int child, std::uint64_t plan) const {
  const auto cancelled = cancelled_.find(plan);
  return cancelled != cancelled_.end() && known_below_.at(child) < cancelled->second;
}

bool RoundAgreement::receive_down(Reader& reader) {
  DownMessage message;
  const std::uint8_t ends = reader.byte();
  message.ends = ends == 1;
  message.decisions.resize(reader.size());
  for (Decision& decision : message.decisions) {
    const std::uint64_t value = reader.unsigned_integer();
    decision = {value >> 1, (value & 1) != 0};
    decision.result = read_bytes(reader);
    if (!decision.goes) {
      if (!decision.result.empty()) return false;
      own_.erase(decision.plan);
      continue;
    }
    if (has_ended_) continue;
    // Nothing goes without this host and those below it, and no result is longer than what it has
    // sent along.
    const auto own = own_.find(decision.plan);
    const std::size_t length = decision.result.size();
    if (own == own_.end() || ready_.contains(decision.plan)) return false;
    if (length > 0 && length != own->second.bytes) return false;
    own_.erase(own);
  }
  if (!reader.ok() || !reader.at_end() || ends > 1) return false;
  apply(std::move(message));
  return true;
}

void RoundAgreement::apply(DownMessage message) {
  if (has_ended_) return;
  ++messages_down_;
  Decision* last = nullptr;  // the last one that goes
  decided_.reserve(decided_.size() + message.decisions.size());
  for (Decision& decision : message.decisions) {
    const std::uint64_t plan = decision.plan;
    own_.erase(plan);
    Decision& added = decided_.emplace_back(std::move(decision));
    if (added.goes) {
      if (last != nullptr) last->with_next = true;
      last = &added;
      continue;
    }
    acknowledges_ = true;
    ready_.erase(plan);
    // Otherwise it would seem to come from a host that knows of the cancellation.
    std::erase_if(up_.ready, [&](const auto& ready) { return ready.plan == plan; });
    std::erase(up_.cancelled, plan);
    if (has_children()) cancelled_.try_emplace(plan, messages_down_);
  }
  if (!message.ends) return;
  has_ended_ = true;
  own_.clear();
  ready_.clear();
  cancelled_.clear();
  up_ = {};
}

// --- Flush

void RoundAgreement::flush() {
  if (has_ended_) return;
  if (tree_.is_root()) {
    flush_root();
  } else {
    flush_up();
  }
}

template <class Said>
std::vector<Said> RoundAgreement::take(std::vector<Said>& said, bool everything) const {
  const auto is_held = [&](const Said& each) {
    const auto own = own_.find(each.plan);
    return !everything && own != own_.end() && load_.holds_back(own->second.urgency);
  };
  const auto held = std::stable_partition(said.begin(), said.end(), std::not_fn(is_held));
  std::vector<Said> taken(std::make_move_iterator(said.begin()), std::make_move_iterator(held));
  said.erase(said.begin(), held);
  return taken;
}

void RoundAgreement::sort(std::vector<Decision>& decisions) const {
  const auto goes = [](const Decision& decision) { return decision.goes; };
  const auto priority_of = [this](const Decision& decision) {
    const auto own = own_.find(decision.plan);
    return own == own_.end() ? 0 : own->second.urgency.priority;
  };
  for (auto begin = decisions.begin(); begin != decisions.end();) {
    const auto end = std::find_if_not(begin, decisions.end(), goes);
    std::stable_sort(begin, end, [&](const Decision& left, const Decision& right) {
      return priority_of(left) > priority_of(right);
    });
    begin = std::find_if(end, decisions.end(), goes);
  }
}

void RoundAgreement::flush_root() {
  const bool only_goes = std::all_of(down_.decisions.begin(), down_.decisions.end(),
                                     [](const Decision& decision) { return decision.goes; });
  DownMessage message{take(down_.decisions, down_.ends || !only_goes),
                      std::exchange(down_.ends, false)};
  if (message.decisions.empty() && !message.ends) return;
  sort(message.decisions);
  for (const Decision& decision : message.decisions) result_bytes_ -= decision.result.size();
  Writer writer;
  writer.byte(static_cast<std::uint8_t>(MessageKind::rounds_down));
  writer.byte(message.ends ? 1 : 0);
  writer.unsigned_integer(message.decisions.size());
  for (const Decision& decision : message.decisions) {
    writer.unsigned_integer(decision.plan << 1 | (decision.goes ? 1 : 0));
    writer.block(decision.result);
  }
  const std::vector<std::byte> bytes = writer.take();
  for (const int child : tree_.children()) outgoing_.push_back({child, bytes});
  apply(std::move(message));
}

void RoundAgreement::flush_up() {
  const bool cannot_wait = !up_.cancelled.empty() || up_.ends || acknowledges_;
  const UpMessage message{take(up_.ready, cannot_wait), std::exchange(up_.cancelled, {}), up_.ends};
  if (message.ready.empty() && !cannot_wait) return;
  acknowledges_ = false;
  up_.ends = false;
  Writer writer;
  writer.byte(static_cast<std::uint8_t>(MessageKind::rounds_up));
  writer.unsigned_integer(messages_down_);
  writer.byte(message.ends ? 1 : 0);
  writer.unsigned_integer(message.ready.size());
  for (const ReadySubtree& subtree : message.ready) {
    writer.unsigned_integer(subtree.plan);
    writer.block(subtree.sent);
  }
  write_plans(writer, message.cancelled);
  outgoing_.push_back({tree_.parent(), writer.take()});
}

}  // namespace rueda
