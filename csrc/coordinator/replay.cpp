#include "coordinator/replay.h"

#include <algorithm>
#include <utility>

namespace rueda {

Replay::Replay(HostParts parts, std::shared_ptr<const ProcessSetMembers> members,
               const Options& options, Metrics& metrics, Events events)
    : members_(std::move(members)),
      options_(options),
      metrics_(metrics),
      events_(std::move(events)),
      memory_(std::move(parts), members_->id, members_->size() > 1 ? options_.plans : 0),
      contributions_(memory_, *members_, events_.may_be_eager),
      open_(options_.pause, options_.stall),
      at_once_(memory_, plans_, open_, contributions_, *members_, metrics_) {
  if (!memory_.may_have_table() || !memory_.leads() || !memory_.spans_hosts()) return;
  // Opened immediately, since other hosts may need this rank before it has learned of a plan.
  // Without room for a table that all members here share, this host is never ready, and the other
  // hosts need not wait for it.
  const bool has_room = memory_.open();
  if (!has_room) memory_.open_alone();
  plans_.open(memory_.slots());
  const HostParts& own = memory_.parts();
  leader_.emplace(memory_.readiness(), own.index, static_cast<int>(own.leaders.size()),
                  contributions_.along(plans_));
  if (!has_room && own.own) leader_->end();
}

// --- Submissions

bool Replay::take(std::vector<Submission>& submissions, Time now, bool gpus_wait) {
  if (plans_.has_none()) return false;
  Plan* plan = nullptr;
  bool fit = true;
  taken_.clear();
  for (const Submission& submission : submissions) {
    const PlanTable::Where* const where = plans_.find(submission.request.name);
    if (where == nullptr) {
      fit = false;
      continue;
    }
    Member& member = where->member();
    fit = fit && (plan == nullptr || plan == where->plan) && !member.submission &&
          fits(*member.response, submission.request, members_->rank) &&
          !(gpus_wait && where->plan->on_gpu);
    plan = where->plan;
    taken_.push_back(&member);
  }
  if (plan == nullptr) return false;
  if (fit && !plan->off && plan->members > 1 && memory_.readiness().is_cancelled(plan->place)) {
    release(*plan);
  }
  if (!fit || plan->off) {
    for (const Submission& submission : submissions) {
      const PlanTable::Where* const where = plans_.find(submission.request.name);
      if (where != nullptr) cancel(*where->plan);
    }
    return false;
  }
  for (std::size_t i = 0; i < submissions.size(); ++i) {
    submissions[i].taken_at = now;
    taken_[i]->submission = std::move(submissions[i]);
  }
  if (plan->collected == 0 && submissions.size() < plan->members) open_.collect(*plan);
  plan->collected += submissions.size();
  plan->since = now;
  if (plan->collected == plan->members) join(*plan);
  return true;
}

void Replay::join(Plan& plan) {
  open_.stop_collecting(plan);
  contributions_.send(plan);
  const ReadinessTable::Joined joined = memory_.readiness().join(plan.place, plan.round);
  if (joined == ReadinessTable::Joined::off) return release(plan);
  open_.join(plan);
  if (joined != ReadinessTable::Joined::completed) return;
  if (!memory_.spans_hosts()) {
    memory_.wake_others();
  } else if (!memory_.leads()) {
    memory_.wake_leader();
  }
}

Submission* Replay::recall(const std::string& name) {
  if (!holds(name)) return nullptr;
  const PlanTable::Where where = *plans_.find(name);
  cancel(*where.plan);
  auto& submission = where.member().submission;
  return submission ? &*submission : nullptr;
}

void Replay::suspend() {
  suspended_ = true;
  for (const auto& plan : plans_.all()) cancel(*plan);
}

std::vector<Submission> Replay::give_up() {
  leader_.reset();
  std::vector<Submission> all;
  for (const Plans& plans : {open_.collecting(), open_.joined()}) {
    for (Plan* plan : plans) {
      for (Submission& submission : open_.abandon(*plan)) all.push_back(std::move(submission));
    }
  }
  return all;
}

// --- Cancelling

void Replay::cancel(Plan& plan, Audience audience) {
  if (plan.off) return;
  plan.off = true;
  if (memory_.readiness().cancel(plan.place, audience)) {
    metrics_.plans_cancelled.add(1);
    memory_.wake_others();
  }
  if (plan.joined) {
    const ReadinessTable::State state = memory_.readiness().look(plan.place, plan.round);
    if (state == ReadinessTable::State::decided) return;  // it is in the log, or about to be
    if (state == ReadinessTable::State::undecided) return;
    if (state == ReadinessTable::State::gone) read_log();
    if (!plan.joined) return;
  }
  release(plan);
}

// Operations handed back are negotiated, which leads here again: do it once.
void Replay::cancel_gpu_rounds() {
  if (std::exchange(calls_off_gpus_, true)) return;
  const auto is_open = [](const Plan* plan) { return plan->on_gpu && !plan->off; };
  const Plans& joined = open_.joined();
  for (auto open = joined.begin();
       (open = std::find_if(joined.begin(), joined.end(), is_open)) != joined.end();) {
    cancel(**open);
  }
  calls_off_gpus_ = false;
}

void Replay::release(Plan& plan) {
  plan.off = true;
  if (plan.collected == 0) return;
  std::vector<Submission> held = open_.abandon(plan);
  if (plan.forgotten) plans_.bury(plan);
  while (!held.empty()) {
    const std::string group = held.front().request.group;
    const auto same = [&](const Submission& submission) {
      return !group.empty() && submission.request.group == group;
    };
    const auto others = std::stable_partition(held.begin() + 1, held.end(), same);
    std::vector<Submission> together(std::make_move_iterator(held.begin()),
                                     std::make_move_iterator(others));
    held.erase(held.begin(), others);
    events_.negotiate(std::move(together));
  }
}

bool Replay::is_undecided() const {
  const Plans& joined = open_.joined();
  return std::any_of(joined.begin(), joined.end(), [this](const Plan* plan) {
    return plan->off &&
           memory_.readiness().look(plan->place, plan->round) != ReadinessTable::State::decided;
  });
}

void Replay::close() {
  suspend();
  if (leader_ && leader_->is_root()) leader_->end();
}

// --- Plans

void Replay::forget(const Response& response) {
  if (response.kind != ResponseKind::execute && response.kind != ResponseKind::error) return;
  const PlanTable::Where* const found = plans_.find(response.request.name);
  if (found != nullptr) forget(*found->plan);
  // An error fails the whole group, whatever its members' plans are.
  const std::string& group = response.request.group;
  if (response.kind == ResponseKind::execute || group.empty()) return;
  for (Plan* plan : plans_.of_group(group)) forget(*plan);
}

void Replay::forget(Plan& plan) {
  cancel(plan, Audience::own_host);
  if (leader_) leader_->forget(plan.place);
  read_log();
  plans_.forget(plan);
}

void Replay::learn(const ResponseList& responses, std::span<const Fusion> batches,
                   const std::function<bool(const std::string&)>& is_pending) {
  if (memory_.open()) plans_.open(memory_.slots());
  if (!memory_.is_open()) return;
  const auto on_gpu = [&](const Fusion* batch) {
    return responses[batch->members.front()].request.on_gpu;
  };
  const auto comes_again = [&](const Batch& batch) {
    return std::any_of(batch.begin(), batch.end(), [&](const Member& member) {
      return is_pending(member.response->request.name);
    });
  };
  for (const auto& together : batches_of_plans(responses, batches)) {
    if (!can_be_planned(responses, together)) continue;
    if (memory_.spans_hosts() && std::any_of(together.begin(), together.end(), on_gpu)) continue;
    if (plans_.size() >= static_cast<std::size_t>(options_.plans)) forget(*plans_.all().front());
    Plan& plan = plans_.add(responses, together);
    contributions_.prepare(plan);
    at_once_.prepare(plan);
    if (leader_) leader_->learn(plan.place, plan.urgency);
    if (suspended_ || std::any_of(plan.batches.begin(), plan.batches.end(), comes_again)) {
      cancel(plan);
    }
  }
}

// --- Progress

bool Replay::step(Time now, const Load& load) {
  if (!memory_.is_open()) return false;
  bool moved = lead(load);
  moved = read_log() || moved;
  moved = release_cancelled() || moved;
  while (Plan* const overdue = open_.overdue(now)) {
    cancel(*overdue);
    moved = true;
  }
  return moved;
}

bool Replay::lead(const Load& load) {
  if (!leader_) return false;
  const bool decided = leader_->step(load);
  if (decided) memory_.wake_others();
  for (RoundAgreement::Outgoing& outgoing : leader_->take_outgoing()) {
    const int member = memory_.parts().leaders[static_cast<std::size_t>(outgoing.host)];
    events_.send(member, std::move(outgoing.message));
  }
  return decided;
}

bool Replay::receive(int member, std::span<const std::byte> message) {
  const auto& leaders = memory_.parts().leaders;
  const auto found = std::lower_bound(leaders.begin(), leaders.end(), member);
  if (!leader_ || found == leaders.end() || *found != member) return false;
  return leader_->receive(static_cast<int>(found - leaders.begin()), message);
}

bool Replay::read_log() {
  bool moved = false;
  for (;;) {
    Plans together;
    std::uint64_t position = memory_.log_position();
    bool is_whole = false;
    while (!is_whole) {
      const auto entry = memory_.readiness().read(position++);
      if (!entry) return moved;
      Plan* plan = plans_.in_slot(entry->slot);
      if (plan != nullptr && plan->joined) together.push_back(plan);
      is_whole = !entry->with_next;
    }
    memory_.move_in_log(position);
    moved = true;
    // Plans whose data has been sent along go last: they need no order among the ranks, and end at
    // once, after which the log may be read further before this returns.
    const auto at_hand = std::stable_partition(together.begin(), together.end(), [&](Plan* plan) {
      return together.size() > 1 && !contributions_.find(*plan, sent_);
    });
    const Plans fused(together.begin(), at_hand);
    if (fused.size() == 1) run(*fused.front());
    if (fused.size() > 1) run_fused(fused);
    for (auto plan = at_hand; plan != together.end(); ++plan) run(**plan);
  }
}

void Replay::run(Plan& plan) {
  // An execution may trigger another one.
  std::vector<const std::byte*> sent = std::exchange(sent_, {});
  const bool is_eager = contributions_.find(plan, sent);
  open_.finish(plan);
  metrics_.plans_replayed.add(1);
  if (is_eager) metrics_.plans_eager.add(1);
  for (std::size_t batch = 0; batch < plan.batches.size(); ++batch) {
    events_.execute(plan.batches[batch],
                    is_eager ? contributions_.of_batch(plan, batch, sent) : Contributions());
  }
  sent_ = std::move(sent);
  if (plan.forgotten) plans_.bury(plan);
}

// Fuses like the responses of one list, since their batches were agreed on one after the other.
void Replay::run_fused(const Plans& plans) {
  Batch members;
  std::vector<const Response*> responses;
  for (Plan* plan : plans) {
    open_.finish(*plan);
    metrics_.plans_replayed.add(1);
    for (Batch& batch : plan->batches) {
      for (Member& member : batch) {
        responses.push_back(member.response.get());
        members.push_back({member.response, std::exchange(member.submission, std::nullopt)});
      }
    }
    if (plan->forgotten) plans_.bury(*plan);
  }
  for (const Fusion& fusion : fuse(responses, options_.fusion_threshold)) {
    Batch batch;
    for (const std::size_t index : fusion.members) batch.push_back(std::move(members[index]));
    events_.execute(batch, {});
  }
}

bool Replay::release_cancelled() {
  const std::uint64_t calls_off = memory_.readiness().calls_off();
  if (calls_off == calls_off_seen_) return false;
  calls_off_seen_ = calls_off;
  bool moved = false;
  for (Plan* plan : Plans(open_.collecting())) {
    if (!memory_.readiness().is_cancelled(plan->place)) continue;
    release(*plan);
    moved = true;
  }
  // Reading the log may execute some of them and destroy forgotten ones.
  for (Plan* plan : Plans(open_.joined())) {
    if (!open_.is_joined(plan)) continue;
    const ReadinessTable::State state = memory_.readiness().look(plan->place, plan->round);
    if (state == ReadinessTable::State::open || state == ReadinessTable::State::decided ||
        state == ReadinessTable::State::undecided) {
      continue;
    }
    if (state == ReadinessTable::State::gone) read_log();
    if (open_.is_joined(plan)) release(*plan);
    moved = true;
  }
  return moved;
}

}  // namespace rueda
