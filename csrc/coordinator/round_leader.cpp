#include "coordinator/round_leader.h"

#include <utility>

namespace rueda {

RoundLeader::RoundLeader(const ReadinessTable& table, int host, int hosts, Along along)
    : table_(table),
      agreement_(
          host, hosts,
          [this](std::uint64_t plan, std::vector<RoundAgreement::Bytes> sent, bool is_result) {
            return along_.combine(plans_.at(plan).place, std::move(sent), is_result);
          }),
      along_(std::move(along)) {}

void RoundLeader::learn(ReadinessTable::Plan plan, Urgency urgency) {
  has_learned_ = true;
  last_learned_ = plan.number;
  Known& known = plans_[plan.number] = {plan, urgency};
  if (cancelled_early_.erase(plan.number) > 0 || has_ended_) {
    known.is_cancelled = true;
    table_.decide_cancelled(plan);
  } else if (table_.is_cancelled(plan)) {
    cancel(known);
  }
}

void RoundLeader::forget(ReadinessTable::Plan plan) {
  read_reports();
  const auto known = plans_.find(plan.number);
  if (known == plans_.end()) return;
  known->second.is_forgotten = known->second.is_ready;
  if (!known->second.is_ready) plans_.erase(known);
}

// Carried out immediately, so that this host says nothing that contradicts a decision.
bool RoundLeader::receive(int host, std::span<const std::byte> message) {
  const bool is_sound = agreement_.receive(host, message);
  carry_out_decisions();
  return is_sound;
}

bool RoundLeader::step(const Load& load) {
  read_reports();
  agreement_.set_load(load);
  agreement_.flush();
  carry_out_decisions();
  return std::exchange(has_decided_, false);
}

void RoundLeader::carry_out_decisions() {
  for (const RoundAgreement::Decision& decision : agreement_.take_decisions()) {
    has_decided_ = true;
    carry_out(decision);
  }
  if (has_ended_ || !agreement_.has_ended()) return;
  has_ended_ = true;
  has_decided_ = true;
  for (auto plan = plans_.begin(); plan != plans_.end();) {
    Known& known = (plan++)->second;
    known.is_cancelled = true;
    table_.decide_cancelled(known.place);
    settle(known);
  }
}

void RoundLeader::read_reports() {
  while (const auto report = table_.read_report(read_)) {
    ++read_;
    const auto found = plans_.find(report->plan.number);
    if (found == plans_.end()) continue;
    Known& known = found->second;
    if (report->is_complete && !known.is_ready) {
      // This host decides what no other host has been told of.
      if (report->is_cancelled) {
        table_.decide_cancelled(known.place);
      } else {
        known.is_ready = true;
        ++undecided_;
        agreement_.ready(report->plan.number, along_.collect(report->plan), known.urgency);
      }
    }
    if (report->is_cancelled) cancel(known);
  }
}

void RoundLeader::cancel(Known& plan) {
  if (!std::exchange(plan.is_cancelled, true)) agreement_.cancel(plan.place.number);
}

void RoundLeader::carry_out(const RoundAgreement::Decision& decision) {
  const auto found = plans_.find(decision.plan);
  if (found == plans_.end()) {
    if (!decision.goes && decision.plan > last_learned_) cancelled_early_.insert(decision.plan);
    return;
  }
  Known& known = found->second;
  if (decision.goes) {
    along_.hand_out(known.place, decision.result);
    table_.decide(known.place, decision.with_next);
  } else {
    known.is_cancelled = true;
    table_.decide_cancelled(known.place);
  }
  settle(known);
}

void RoundLeader::settle(Known& plan) {
  if (std::exchange(plan.is_ready, false)) --undecided_;
  if (plan.is_forgotten) plans_.erase(plan.place.number);
}

}  // namespace rueda
