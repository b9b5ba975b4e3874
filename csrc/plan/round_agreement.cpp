#include "plan/round_agreement.h"

#include <algorithm>

#include "plan/negotiation_message.h"

namespace rueda {

namespace {

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

void RoundAgreement::ready(std::uint64_t plan) {
  if (!has_ended_) add_ready(plan);
}

void RoundAgreement::cancel(std::uint64_t plan) {
  if (!has_ended_) add_cancelled(plan);
}

void RoundAgreement::end() {
  (tree_.is_root() ? down_.ends : up_.ends) = true;
}

void RoundAgreement::add_ready(std::uint64_t plan) {
  std::size_t& count = ready_[plan];
  if (++count <= tree_.children().size()) return;
  ready_.erase(plan);
  if (tree_.is_root()) {
    down_.decisions.push_back({plan, true});
  } else {
    up_.ready.push_back(plan);
  }
}

// The root's own decisions take effect at once, though they travel with the next flush.
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
  const std::vector<std::uint64_t> ready = read_plans(reader);
  const std::vector<std::uint64_t> cancelled = read_plans(reader);
  if (!reader.ok() || !reader.at_end() || ends > 1 || known > messages_down_) return false;
  if (has_ended_) return true;
  known_below_[child] = known;
  std::erase_if(cancelled_, [&](const auto& plan) {
    const std::vector<int> children = tree_.children();
    return std::all_of(children.begin(), children.end(),
                       [&](int node) { return known_below_[node] >= plan.second; });
  });
  for (const std::uint64_t plan : ready) {
    if (!is_late(child, plan)) add_ready(plan);
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
  }
  if (!reader.ok() || !reader.at_end() || ends > 1) return false;
  apply(message);
  return true;
}

void RoundAgreement::apply(const DownMessage& message) {
  if (has_ended_) return;
  ++messages_down_;
  Decision* last = nullptr;  // that goes
  decided_.reserve(decided_.size() + message.decisions.size());
  for (const Decision& decision : message.decisions) {
    decided_.push_back(decision);
    if (decision.goes) {
      if (last != nullptr) last->with_next = true;
      last = &decided_.back();
      continue;
    }
    acknowledges_ = true;
    ready_.erase(decision.plan);
    // Or it would seem to be said by one who knows.
    std::erase(up_.ready, decision.plan);
    std::erase(up_.cancelled, decision.plan);
    if (has_children()) cancelled_.try_emplace(decision.plan, messages_down_);
  }
  if (!message.ends) return;
  has_ended_ = true;
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

void RoundAgreement::flush_root() {
  const bool only_goes = std::all_of(down_.decisions.begin(), down_.decisions.end(),
                                     [](const Decision& decision) { return decision.goes; });
  if (!down_.ends && only_goes && (is_busy_ || down_.decisions.empty())) return;
  const DownMessage message = std::exchange(down_, {});
  Writer writer;
  writer.byte(static_cast<std::uint8_t>(MessageKind::rounds_down));
  writer.byte(message.ends ? 1 : 0);
  writer.unsigned_integer(message.decisions.size());
  for (const Decision& decision : message.decisions) {
    writer.unsigned_integer(decision.plan << 1 | (decision.goes ? 1 : 0));
  }
  const std::vector<std::byte> bytes = writer.take();
  for (const int child : tree_.children()) outgoing_.push_back({child, bytes});
  apply(message);
}

void RoundAgreement::flush_up() {
  const bool is_urgent = !up_.cancelled.empty() || up_.ends || acknowledges_;
  if (!is_urgent && (is_busy_ || up_.ready.empty())) return;
  acknowledges_ = false;
  const UpMessage message = std::exchange(up_, {});
  Writer writer;
  writer.byte(static_cast<std::uint8_t>(MessageKind::rounds_up));
  writer.unsigned_integer(messages_down_);
  writer.byte(message.ends ? 1 : 0);
  write_plans(writer, message.ready);
  write_plans(writer, message.cancelled);
  outgoing_.push_back({tree_.parent(), writer.take()});
}

}  // namespace rueda
