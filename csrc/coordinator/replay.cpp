#include "coordinator/replay.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <new>

#include "coordinator/contribution.h"
#include "core/log.h"

namespace rueda {

namespace {

// No process set has such a number. There are 2^31 keys for each.
std::uint64_t table_key(int set_id) {
  return std::uint64_t{1} << 62 | static_cast<std::uint64_t>(set_id) << 31;
}

bool may_differ_in_first_extent(Collective collective) {
  return collective == Collective::allgather || collective == Collective::alltoall;
}

bool is_same(const Request& left, const Request& right) {
  const auto skipped = may_differ_in_first_extent(left.collective) && !left.shape.empty() ? 1 : 0;
  return left.collective == right.collective && left.dtype == right.dtype &&
         left.on_gpu == right.on_gpu && left.wire == right.wire &&
         left.compression == right.compression && left.leaf_ranks == right.leaf_ranks &&
         left.op == right.op && left.root == right.root && left.priority == right.priority &&
         left.prescale == right.prescale && left.postscale == right.postscale &&
         left.group_size == right.group_size && left.shape.size() == right.shape.size() &&
         std::equal(left.shape.begin() + skipped, left.shape.end(),
                    right.shape.begin() + skipped) &&
         left.splits == right.splits && left.group == right.group;
}

// Not an operation on process sets, or what fills no plan.
bool may_be_replayed(const Response& response) {
  return response.kind == ResponseKind::execute && response.absent.empty() &&
         response.request.collective <= Collective::barrier;
}

// A slot rests for as many plans as there may be at one time, and for more than one list of
// responses makes, before it is used again. So by then every rank has long finished what it was
// doing to the slot, and has heard that its plan was cancelled.
int slots_for(int plans) {
  constexpr int least = 1024;
  return 2 * std::max(plans, least);
}

template <class T>
void remove(std::vector<T>& from, const T& value) {
  const auto found = std::find(from.begin(), from.end(), value);
  if (found != from.end()) from.erase(found);
}

}  // namespace

Replay::Replay(HostParts parts, std::shared_ptr<const ProcessSetMembers> members,
               const Options& options, Metrics& metrics, Events events)
    : parts_(std::move(parts)),
      members_(std::move(members)),
      options_(options),
      metrics_(metrics),
      events_(std::move(events)),
      key_(table_key(members_->id)) {
  may_have_table_ = options_.plans > 0 && members_->size() > 1 &&
                    parts_.own.ranks.size() <= ReadinessTable::max_members;
  if (!may_have_table_ || !leads()) return;
  if (parts_.own) make_table();
  if (spans_hosts()) make_leader();
}

Replay::~Replay() {
  if (may_have_table_ && parts_.own) parts_.own.memory->retire(key_, parts_.own.ranks);
}

void Replay::make_table() {
  try {
    const std::size_t bytes = ReadinessTable::bytes(slots_for(options_.plans));
    (void)parts_.own.memory->publish(key_, bytes, bytes);
  } catch (const std::bad_alloc&) {
    log(LogLevel::info, "there is no shared memory left to repeat operations without negotiation");
  }
}

// At once: other hosts may need this rank before it has learned of a plan. Without room for a table
// that all members here share, they are never ready, and the other hosts need not wait for them.
void Replay::make_leader() {
  open_table();
  const bool has_room = readiness_.has_value();
  if (!has_room) {
    const int slots = slots_for(options_.plans);
    own_table_.resize(ReadinessTable::bytes(slots) / sizeof(CacheLine) + 1);
    use_table(own_table_.front().bytes.data(), slots);
  }
  leader_.emplace(*readiness_, parts_.index, static_cast<int>(parts_.leaders.size()),
                  what_goes_along());
  if (!has_room && parts_.own) leader_->end();
}

// Called when something has been agreed on: then the first member has made the readiness table, or
// never will, and all members find the same.
void Replay::open_table() {
  if (!may_have_table_ || std::exchange(searched_, true) || !parts_.own) return;
  std::byte* memory = parts_.own.memory->find(parts_.own.ranks.front(), key_);
  if (memory != nullptr) use_table(memory, slots_for(options_.plans));
}

void Replay::use_table(std::byte* memory, int slots) {
  using Decided = ReadinessTable::Decided;
  const auto members = static_cast<int>(std::max<std::size_t>(parts_.own.ranks.size(), 1));
  readiness_.emplace(memory, slots, members, spans_hosts() ? Decided::by_hosts : Decided::here);
  eager_.emplace(parts_, key_, slots);
  by_slot_.assign(static_cast<std::size_t>(slots), nullptr);
  for (int slot = 0; slot < slots; ++slot) free_slots_.push_back(slot);
}

// --- Submissions

bool Replay::fits(const Member& member, const Request& request) const {
  const Response& agreed = *member.response;
  if (!request.error.ok() || !is_same(agreed.request, request)) return false;
  if (!covers_output(agreed.request, request)) return false;
  return agreed.request.collective != Collective::allgather ||
         agreed.first_extents[static_cast<std::size_t>(members_->rank)] == request.shape.front();
}

bool Replay::take(std::vector<Submission>& submissions, Time now, bool gpus_wait) {
  if (by_name_.empty()) return false;
  Plan* plan = nullptr;
  bool fit = true;
  for (const Submission& submission : submissions) {
    const auto found = by_name_.find(submission.request.name);
    if (found == by_name_.end()) {
      fit = false;
      continue;
    }
    const Where& where = found->second;
    fit = fit && (plan == nullptr || plan == where.plan) && !at(where).submission &&
          fits(at(where), submission.request) && !(gpus_wait && where.plan->on_gpu);
    plan = where.plan;
  }
  if (plan == nullptr) return false;
  if (fit && !plan->off && plan->members > 1 && readiness_->is_cancelled(plan->place))
    release(*plan);
  if (!fit || plan->off) {
    for (const Submission& submission : submissions) {
      const auto found = by_name_.find(submission.request.name);
      if (found != by_name_.end()) cancel(*found->second.plan);
    }
    return false;
  }
  for (Submission& submission : submissions) {
    submission.taken_at = now;
    at(by_name_.find(submission.request.name)->second).submission = std::move(submission);
  }
  if (plan->collected == 0 && submissions.size() < plan->members) collecting_.push_back(plan);
  plan->collected += submissions.size();
  plan->since = now;
  if (plan->collected == plan->members) join(*plan);
  return true;
}

// What is to be exchanged must have a length that all know.
void Replay::prepare_to_send(Plan& plan) {
  plan.sent = {0};
  for (const Batch& batch : plan.batches) {
    const auto bytes = contributed_bytes(batch);
    if (!bytes || *bytes > EagerExchange::capacity || !events_.may_be_eager(*bytes) ||
        (spans_hosts() && !can_be_combined(batch))) {
      return plan.sent.clear();
    }
    plan.sent.push_back(round_up(plan.sent.back() + *bytes, alignof(std::max_align_t)));
  }
  if (plan.sent.back() > EagerExchange::capacity) return plan.sent.clear();
  eager_->reserve(plan.place.slot, plan.sent.back());
}

void Replay::join(Plan& plan) {
  remove(collecting_, &plan);
  if (!plan.sent.empty()) {
    std::byte* const target = eager_->offer(plan.place.slot, plan.round, plan.sent.back());
    for (std::size_t batch = 0; target != nullptr && batch < plan.batches.size(); ++batch) {
      contribute(plan.batches[batch], members_->rank, target + plan.sent[batch]);
    }
  }
  const ReadinessTable::Joined joined = readiness_->join(plan.place, plan.round);
  if (joined == ReadinessTable::Joined::off) return release(plan);
  plan.joined = true;
  joined_.push_back(&plan);
  if (joined != ReadinessTable::Joined::completed) return;
  if (!spans_hosts()) {
    wake_others();
  } else if (!leads()) {
    wake_member(0);
  }
}

RoundLeader::Along Replay::what_goes_along() {
  const auto plan_at = [this](ReadinessTable::Plan place) -> const Plan& {
    return *by_slot_[static_cast<std::size_t>(place.slot)];
  };
  return {[=, this](ReadinessTable::Plan place) { return collect_here(plan_at(place)); },
          [=, this](ReadinessTable::Plan place, const std::vector<RoundAgreement::Bytes>& partial,
                    bool is_result) { return combine(plan_at(place), partial, is_result); },
          [=, this](ReadinessTable::Plan place, const RoundAgreement::Bytes& result) {
            const Plan& plan = plan_at(place);
            if (!plan.sent.empty()) eager_->hand_out(place.slot, plan.round, result);
          }};
}

// By the leader, which has joined the round, too.
RoundAgreement::Bytes Replay::collect_here(const Plan& plan) {
  std::vector<const std::byte*> sent;
  if (plan.sent.empty() ||
      !eager_->collect_here(plan.place.slot, plan.round, plan.sent.back(), sent)) {
    return {};
  }
  RoundAgreement::Bytes partial(plan.sent.back());
  for (std::size_t batch = 0; batch < plan.batches.size(); ++batch) {
    std::vector<const std::byte*> contributions = sent;
    for (const std::byte*& contribution : contributions) contribution += plan.sent[batch];
    combine_contributions(plan.batches[batch], contributions, partial.data() + plan.sent[batch]);
  }
  return partial;
}

RoundAgreement::Bytes Replay::combine(const Plan& plan,
                                      const std::vector<RoundAgreement::Bytes>& partial,
                                      bool is_result) const {
  if (partial.front().size() != plan.sent.back()) return {};
  RoundAgreement::Bytes combined(partial.front().size());
  for (std::size_t batch = 0; batch < plan.batches.size(); ++batch) {
    std::vector<const std::byte*> inputs;
    for (const auto& bytes : partial) inputs.push_back(bytes.data() + plan.sent[batch]);
    combine_partial(plan.batches[batch], inputs, is_result ? members_->size() : 0,
                    combined.data() + plan.sent[batch]);
  }
  return combined;
}

bool Replay::holds(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found != by_name_.end() && at(found->second).submission;
}

Submission* Replay::recall(const std::string& name) {
  if (!holds(name)) return nullptr;
  const Where where = by_name_.at(name);
  cancel(*where.plan);
  auto& submission = at(where).submission;
  return submission ? &*submission : nullptr;
}

void Replay::suspend() {
  suspended_ = true;
  for (const auto& plan : plans_) cancel(*plan);
}

std::vector<Submission> Replay::give_up() {
  leader_.reset();
  std::vector<Submission> all;
  for (const Plans& plans : {collecting_, joined_}) {
    for (Plan* plan : plans) {
      for (Submission& submission : empty(*plan)) all.push_back(std::move(submission));
    }
  }
  return all;
}

// --- Calling off

void Replay::cancel(Plan& plan, Audience audience) {
  if (plan.off) return;
  plan.off = true;
  if (readiness_->cancel(plan.place, audience)) {
    metrics_.plans_called_off.add(1);
    wake_others();
  }
  if (plan.joined) {
    const ReadinessTable::State state = readiness_->look(plan.place, plan.round);
    if (state == ReadinessTable::State::decided) return;  // the log has it, or is about to
    if (state == ReadinessTable::State::undecided) return;
    if (state == ReadinessTable::State::gone) read_log();
    if (!plan.joined) return;
  }
  release(plan);
}

// What is handed back is negotiated, and comes here again: once is enough.
void Replay::cancel_gpu_rounds() {
  if (std::exchange(calls_off_gpus_, true)) return;
  const auto is_open = [](const Plan* plan) { return plan->on_gpu && !plan->off; };
  for (auto open = joined_.begin();
       (open = std::find_if(joined_.begin(), joined_.end(), is_open)) != joined_.end();) {
    cancel(**open);
  }
  calls_off_gpus_ = false;
}

void Replay::release(Plan& plan) {
  plan.off = true;
  if (plan.collected == 0) return;
  std::vector<Submission> held = empty(plan);
  if (plan.forgotten) bury(plan);
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

std::vector<Submission> Replay::empty(Plan& plan) {
  std::vector<Submission> held;
  for (Batch& batch : plan.batches) {
    for (Member& member : batch) {
      if (member.submission) held.push_back(*std::move(member.submission));
      member.submission.reset();
    }
  }
  remove(collecting_, &plan);
  remove(joined_, &plan);
  plan.joined = false;
  plan.collected = 0;
  return held;
}

void Replay::wake_member(int member) {
  const int rank = parts_.own.ranks[static_cast<std::size_t>(member)];
  wake(parts_.own.memory->wake_target(rank));
}

void Replay::wake_others() {
  for (int member = 0; member < static_cast<int>(parts_.own.ranks.size()); ++member) {
    if (member != parts_.rank) wake_member(member);
  }
}

bool Replay::is_undecided() const {
  return std::any_of(joined_.begin(), joined_.end(), [this](const Plan* plan) {
    return plan->off &&
           readiness_->look(plan->place, plan->round) != ReadinessTable::State::decided;
  });
}

void Replay::close() {
  suspend();
  if (leader_ && leader_->is_root()) leader_->end();
}

// --- Plans

void Replay::forget(const Response& response) {
  if (response.kind != ResponseKind::execute && response.kind != ResponseKind::error) return;
  if (const auto found = by_name_.find(response.request.name); found != by_name_.end()) {
    forget(*found->second.plan);
  }
  // An error fails the whole group, whatever its members' plans are.
  const std::string& group = response.request.group;
  if (response.kind == ResponseKind::execute || group.empty()) return;
  Plans failed;
  for (const auto& [name, where] : by_name_) {
    if (at(where).response->request.group == group) failed.push_back(where.plan);
  }
  // In the order of their slots' later use, which must be the same on all ranks.
  std::sort(failed.begin(), failed.end(), [](const Plan* left, const Plan* right) {
    return left->place.number < right->place.number;
  });
  failed.erase(std::unique(failed.begin(), failed.end()), failed.end());
  for (Plan* plan : failed) forget(*plan);
}

void Replay::forget(Plan& plan) {
  cancel(plan, Audience::own_host);
  if (leader_) leader_->forget(plan.place);
  read_log();
  for (const Batch& batch : plan.batches) {
    for (const Member& member : batch) by_name_.erase(member.response->request.name);
  }
  free_slots_.push_back(plan.place.slot);
  const auto own = std::find_if(plans_.begin(), plans_.end(),
                                [&](const auto& other) { return other.get() == &plan; });
  if (plan.joined) {  // decided, and about to be entered, or undecided
    plan.forgotten = true;
    last_rounds_.push_back(std::move(*own));
  } else {
    by_slot_[static_cast<std::size_t>(plan.place.slot)] = nullptr;
  }
  plans_.erase(own);
}

// Batches that have members of one group make one plan: a group is replayed as a whole.
void Replay::learn(const ResponseList& responses, std::span<const Fusion> batches,
                   const std::function<bool(const std::string&)>& is_pending) {
  open_table();
  if (!readiness_) return;
  std::map<std::string, std::size_t> plan_of_group;
  std::vector<std::vector<const Fusion*>> plans;
  for (const Fusion& batch : batches) {
    std::vector<const Fusion*> together{&batch};
    const std::size_t index = plans.size();
    for (const std::size_t member : batch.members) {
      const std::string& group = responses[member].request.group;
      if (group.empty()) continue;
      const auto [found, is_new] = plan_of_group.try_emplace(group, index);
      if (is_new || found->second == index) continue;
      auto& other = plans[found->second];
      together.insert(together.begin(), other.begin(), other.end());
      other.clear();
      for (auto& [name, plan] : plan_of_group) {
        if (plan == found->second && name != group) plan = index;
      }
      found->second = index;
    }
    plans.push_back(std::move(together));
  }
  for (const auto& plan : plans) {
    if (!plan.empty()) make_plan(responses, plan, is_pending);
  }
}

void Replay::make_plan(const ResponseList& responses, std::span<const Fusion* const> batches,
                       const std::function<bool(const std::string&)>& is_pending) {
  std::map<std::string, int> missing;  // members of each group
  for (const Fusion* batch : batches) {
    for (const std::size_t index : batch->members) {
      const Response& response = responses[index];
      if (!may_be_replayed(response)) return;
      const Request& request = response.request;
      if (request.group.empty()) continue;
      --missing.try_emplace(request.group, request.group_size).first->second;
    }
  }
  for (const auto& [group, count] : missing) {
    if (count != 0) return;
  }
  const auto on_gpu = [&](const Fusion* batch) {
    return responses[batch->members.front()].request.on_gpu;
  };
  if (spans_hosts() && std::any_of(batches.begin(), batches.end(), on_gpu)) return;
  if (plans_.size() >= static_cast<std::size_t>(options_.plans)) forget(*plans_.front());

  plans_.push_back(std::make_unique<Plan>());
  Plan& plan = *plans_.back();
  plan.place = {free_slots_.front(), next_plan_++};
  free_slots_.pop_front();
  by_slot_[static_cast<std::size_t>(plan.place.slot)] = &plan;
  plan.urgency.priority = responses[batches.front()->members.front()].request.priority;
  bool comes_again = false;
  for (const Fusion* batch : batches) {
    Batch& members = plan.batches.emplace_back();
    for (const std::size_t index : batch->members) {
      const std::string& name = responses[index].request.name;
      by_name_[name] = {&plan, plan.batches.size() - 1, members.size()};
      members.push_back({std::make_shared<const Response>(responses[index]), std::nullopt});
      plan.urgency.priority = std::max(plan.urgency.priority, responses[index].request.priority);
      plan.urgency.bytes += responses[index].request.bytes();
      plan.on_gpu = plan.on_gpu || responses[index].request.on_gpu;
      comes_again = comes_again || is_pending(name);
    }
    plan.members += members.size();
  }
  prepare_to_send(plan);
  prepare_at_once(plan);
  if (leader_) leader_->learn(plan.place, plan.urgency);
  if (suspended_ || comes_again) cancel(plan);
}

// --- Progress

bool Replay::step(Time now, const Load& load) {
  if (!readiness_) return false;
  bool moved = lead(load);
  moved = read_log() || moved;
  moved = release_cancelled() || moved;
  return renegotiate_overdue(now) || moved;
}

bool Replay::lead(const Load& load) {
  if (!leader_) return false;
  const bool decided = leader_->step(load);
  if (decided) wake_others();
  for (RoundAgreement::Outgoing& outgoing : leader_->take_outgoing()) {
    const int member = parts_.leaders[static_cast<std::size_t>(outgoing.host)];
    events_.send(member, std::move(outgoing.message));
  }
  return decided;
}

bool Replay::receive(int member, std::span<const std::byte> message) {
  const auto& leaders = parts_.leaders;
  const auto found = std::lower_bound(leaders.begin(), leaders.end(), member);
  if (!leader_ || found == leaders.end() || *found != member) return false;
  return leader_->receive(static_cast<int>(found - leaders.begin()), message);
}

bool Replay::read_log() {
  bool moved = false;
  for (;;) {
    Plans together;
    std::uint64_t position = read_;
    bool is_whole = false;
    while (!is_whole) {
      const auto entry = readiness_->read(position++);
      if (!entry) return moved;
      Plan* plan = by_slot_[static_cast<std::size_t>(entry->slot)];
      if (plan != nullptr && plan->joined) together.push_back(plan);
      is_whole = !entry->with_next;
    }
    read_ = position;
    moved = true;
    // What is at hand goes last: it needs no order among the ranks, and ends at once, whereupon the
    // log may be read on before this returns.
    const auto at_hand = std::stable_partition(together.begin(), together.end(), [&](Plan* plan) {
      return together.size() > 1 && !is_at_hand(*plan, contributions_);
    });
    const Plans fused(together.begin(), at_hand);
    if (fused.size() == 1) run(*fused.front());
    if (fused.size() > 1) run_fused(fused);
    for (auto plan = at_hand; plan != together.end(); ++plan) run(**plan);
  }
}

// Where all that lies which was sent along with the round: into `sent`.
bool Replay::is_at_hand(const Plan& plan, std::vector<const std::byte*>& sent) {
  return !plan.sent.empty() && eager_->collect(plan.place.slot, plan.round, plan.sent.back(), sent);
}

void Replay::run(Plan& plan) {
  // An execution may lead to another one.
  std::vector<const std::byte*> sent = std::exchange(contributions_, {});
  const bool is_eager = is_at_hand(plan, sent);
  finish_round(plan);
  if (is_eager) metrics_.plans_eager.add(1);
  for (std::size_t batch = 0; batch < plan.batches.size(); ++batch) {
    Contributions contributions;
    if (is_eager && spans_hosts()) {
      contributions = Contributions::combined(sent.front(), plan.sent[batch]);
    } else if (is_eager) {
      contributions = Contributions(sent, plan.sent[batch]);
    }
    events_.execute(plan.batches[batch], contributions);
  }
  contributions_ = std::move(sent);
  if (plan.forgotten) bury(plan);
}

// As the responses of one list are: their batches were agreed on one after the other.
void Replay::run_fused(const Plans& plans) {
  Batch members;
  std::vector<const Response*> responses;
  for (Plan* plan : plans) {
    finish_round(*plan);
    for (Batch& batch : plan->batches) {
      for (Member& member : batch) {
        responses.push_back(member.response.get());
        members.push_back({member.response, std::exchange(member.submission, std::nullopt)});
      }
    }
    if (plan->forgotten) bury(*plan);
  }
  for (const Fusion& fusion : fuse(responses, options_.fusion_threshold)) {
    Batch batch;
    for (const std::size_t index : fusion.members) batch.push_back(std::move(members[index]));
    events_.execute(batch, {});
  }
}

void Replay::finish_round(Plan& plan) {
  remove(joined_, &plan);
  plan.joined = false;
  plan.collected = 0;
  ++plan.round;
  metrics_.plans_replayed.add(1);
}

void Replay::bury(Plan& plan) {
  by_slot_[static_cast<std::size_t>(plan.place.slot)] = nullptr;
  std::erase_if(last_rounds_, [&](const auto& other) { return other.get() == &plan; });
}

bool Replay::release_cancelled() {
  const std::uint64_t calls_off = readiness_->calls_off();
  if (calls_off == calls_off_seen_) return false;
  calls_off_seen_ = calls_off;
  bool moved = false;
  for (Plan* plan : Plans(collecting_)) {
    if (!readiness_->is_cancelled(plan->place)) continue;
    release(*plan);
    moved = true;
  }
  // The log may tell of some, and those that are forgotten go with that.
  const auto is_there = [this](Plan* plan) {
    return std::find(joined_.begin(), joined_.end(), plan) != joined_.end();
  };
  for (Plan* plan : Plans(joined_)) {
    if (!is_there(plan)) continue;
    const ReadinessTable::State state = readiness_->look(plan->place, plan->round);
    if (state == ReadinessTable::State::open || state == ReadinessTable::State::decided ||
        state == ReadinessTable::State::undecided) {
      continue;
    }
    if (state == ReadinessTable::State::gone) read_log();
    if (is_there(plan)) release(*plan);
    moved = true;
  }
  return moved;
}

bool Replay::renegotiate_overdue(Time now) {
  bool moved = false;
  if (!collecting_.empty()) {
    for (Plan* plan : Plans(collecting_)) {
      const auto is_awaited = [](const Batch& batch) {
        return std::any_of(batch.begin(), batch.end(), [](const Member& member) {
          return member.submission && member.submission->handle->is_awaited();
        });
      };
      if (now - plan->since < options_.pause &&
          std::none_of(plan->batches.begin(), plan->batches.end(), is_awaited)) {
        continue;
      }
      cancel(*plan);
      moved = true;
    }
  }
  // The one that has waited longest comes first.
  while (options_.stall > Duration::zero() && !joined_.empty() && !joined_.front()->off &&
         now - joined_.front()->since >= options_.stall) {
    cancel(*joined_.front());
    moved = true;
  }
  return moved;
}

std::optional<Time> Replay::next_deadline() const {
  std::optional<Time> earliest;
  for (const Plan* plan : collecting_) {
    const Time due = plan->since + options_.pause;
    if (!earliest || due < *earliest) earliest = due;
  }
  if (options_.stall > Duration::zero() && !joined_.empty() && !joined_.front()->off) {
    const Time due = joined_.front()->since + options_.stall;
    if (!earliest || due < *earliest) earliest = due;
  }
  return earliest;
}

}  // namespace rueda
