#include "control_plane.h"

#include <numeric>
#include <utility>

#include "coordinator/eager_exchange.h"
#include "plan/fusion_plan.h"

namespace rueda::simulate {

namespace {

// As SetCoordinator has them.
NegotiatorOptions options_of(const Settings& settings, const std::vector<int>& members, int rank) {
  NegotiatorOptions options;
  options.rank = rank;
  options.members = members;
  options.fanout = settings.fanout;
  options.cache_capacity = settings.engine.cache_capacity;
  options.fusion_threshold = settings.engine.fusion_threshold;
  return options;
}

}  // namespace

ControlPlane::ControlPlane(const Settings& settings, const SetHosts& hosts, Timeline& timeline,
                           Links& links, Events events)
    : settings_(settings),
      hosts_(hosts),
      timeline_(timeline),
      links_(links),
      events_(std::move(events)),
      replays_(settings.replay),
      lists_of_rank_(static_cast<std::size_t>(settings.ranks())),
      responses_(settings.tensors.size()),
      plan_of_(settings.tensors.size()),
      groups_of_host_(static_cast<std::size_t>(settings.hosts)) {
  std::vector<int> members(static_cast<std::size_t>(settings.ranks()));
  std::iota(members.begin(), members.end(), 0);
  for (const int rank : members) negotiators_.emplace_back(options_of(settings, members, rank));
  for (int host = 0; host < settings.hosts; ++host) {
    // What it would be does not matter, only how long.
    const auto combine = [](std::uint64_t, std::vector<RoundAgreement::Bytes> sent, bool) {
      return std::move(sent.front());
    };
    agreements_.emplace_back(host, settings.hosts, combine, settings.fanout);
  }
  for (const Tensor& tensor : settings.tensors) {
    Request& request = requests_.emplace_back();
    request.name = tensor.name;
    request.shape = {tensor.elements};
    tensor_of_.emplace(tensor.name, tensor_of_.size());
  }
}

Load ControlPlane::load(int rank) const {
  return load_of(events_.running(rank),
                 static_cast<std::size_t>(settings_.engine.batches_in_flight), settings_.hosts > 1);
}

// --- What happens

void ControlPlane::submit(int rank, std::size_t first, std::size_t last) {
  for (std::size_t tensor = first; tensor < last; ++tensor) {
    if (plan_of_[tensor] != nullptr) {
      join(rank, *plan_of_[tensor]);
    } else {
      // Nothing here leaves or is submitted twice.
      static_cast<void>(negotiators_[static_cast<std::size_t>(rank)].submit(requests_[tensor],
                                                                            timeline_.clock(rank)));
    }
  }
  step(rank);
}

void ControlPlane::handle(const Event& event) {
  const auto rank = static_cast<int>(event.rank);
  if (event.kind == EventKind::execute) {
    const Group& group = groups_[event.key];
    execute(rank, group.exchanged);
    for (const Batch* batch : group.at_hand) events_.finish(rank, *batch);
    return;
  }
  if (event.kind == EventKind::report) {
    RoundAgreement& agreement = agreements_[static_cast<std::size_t>(hosts_.host_of(rank))];
    const Plan& plan = plans_[event.key];
    agreement.ready(event.key, RoundAgreement::Bytes(plan.sent_along), {.bytes = plan.bytes});
    return step(rank);
  }
  const std::vector<std::byte> message = std::move(messages_[event.key]);
  free_messages_.push_back(event.key);
  timeline_.spend(rank, settings_.costs.control_message);
  if (is_about_rounds(message)) {
    RoundAgreement& agreement = agreements_[static_cast<std::size_t>(hosts_.host_of(rank))];
    static_cast<void>(agreement.receive(hosts_.host_of(event.from), message));
  } else {
    negotiators_[event.rank].receive(event.from, message, timeline_.clock(rank));
  }
  step(rank);
}

void ControlPlane::finished(int rank) {
  if (negotiators_[static_cast<std::size_t>(rank)].holds_back() || is_leader(rank)) step(rank);
}

// This rank has handed in another tensor of the plan.
void ControlPlane::join(int rank, Plan& plan) {
  if (++plan.collected[static_cast<std::size_t>(rank)] < plan.tensors.size()) return;
  plan.collected[static_cast<std::size_t>(rank)] = 0;
  const int host = hosts_.host_of(rank);
  int& joined = plan.joined[static_cast<std::size_t>(host)];
  if (++joined < hosts_.size(host)) return;
  joined = 0;
  const int leader = hosts_.member(host, 0);
  const double delay = leader == rank ? 0 : settings_.costs.memory_latency;
  timeline_.add(timeline_.clock(rank) + nanoseconds(delay),
                {EventKind::report, static_cast<std::uint32_t>(leader), rank, plan.number});
}

// --- Steps, as those of SetCoordinator and Replay

void ControlPlane::step(int rank) {
  if (replays_ && is_leader(rank)) step_rounds(rank);
  Negotiator& negotiator = negotiators_[static_cast<std::size_t>(rank)];
  negotiator.set_load(load(rank));
  negotiator.flush(timeline_.clock(rank));
  for (Negotiator::Outgoing& outgoing : negotiator.take_outgoing()) {
    send(rank, outgoing.peer, std::move(outgoing.message));
  }
  for (const ResponseList& list : negotiator.take_responses()) {
    execute(rank, next_list(rank, list));
  }
}

void ControlPlane::step_rounds(int rank) {
  const int host = hosts_.host_of(rank);
  RoundAgreement& agreement = agreements_[static_cast<std::size_t>(host)];
  agreement.set_load(load(rank));
  agreement.flush();
  for (RoundAgreement::Outgoing& outgoing : agreement.take_outgoing()) {
    send(rank, hosts_.member(outgoing.host, 0), std::move(outgoing.message));
  }
  std::vector<RoundAgreement::Decision> together;
  for (RoundAgreement::Decision& decision : agreement.take_decisions()) {
    together.push_back(std::move(decision));
    if (together.back().with_next) continue;
    const std::size_t number = groups_of_host_[static_cast<std::size_t>(host)]++;
    if (number == groups_.size()) groups_.push_back(group_of(together));
    together.clear();
    for (int index = 0; index < hosts_.size(host); ++index) {
      const int member = hosts_.member(host, index);
      const double delay = member == rank ? 0 : settings_.costs.memory_latency;
      timeline_.add(timeline_.clock(rank) + nanoseconds(delay),
                    {EventKind::execute, static_cast<std::uint32_t>(member), rank, number});
    }
  }
}

void ControlPlane::send(int from, int to, std::vector<std::byte> message) {
  timeline_.spend(from, settings_.costs.control_message);
  const auto bytes = static_cast<std::int64_t>(message.size());
  const Time arrival = links_.send_control(from, to, bytes, timeline_.clock(from));
  if (free_messages_.empty()) {
    free_messages_.push_back(messages_.size());
    messages_.emplace_back();
  }
  const std::size_t number = free_messages_.back();
  free_messages_.pop_back();
  messages_[number] = std::move(message);
  timeline_.add(arrival, {EventKind::control, static_cast<std::uint32_t>(to), from, number});
}

void ControlPlane::execute(int rank, const Batches& batches) {
  for (const Batch* batch : batches) events_.execute(rank, *batch);
}

// --- Batches: every rank would form the same ones, so they are formed for the first that asks

const ControlPlane::Batches& ControlPlane::next_list(int rank, const ResponseList& list) {
  const std::size_t number = lists_of_rank_[static_cast<std::size_t>(rank)]++;
  if (number < lists_.size()) return lists_[number];
  Batches& batches = lists_.emplace_back();
  for (const Fusion& fusion : fuse(list, settings_.engine.fusion_threshold)) {
    std::vector<std::size_t> tensors;
    for (const std::size_t member : fusion.members) {
      const std::size_t tensor = tensor_of_.at(list[member].request.name);
      responses_[tensor] = list[member];
      tensors.push_back(tensor);
    }
    batches.push_back(&add_batch(std::move(tensors)));
    if (replays_) learn(*batches.back());
  }
  return batches;
}

const Batch& ControlPlane::add_batch(std::vector<std::size_t> tensors) {
  Batch& batch = batches_.emplace_back();
  batch.number = batches_.size();
  for (const std::size_t tensor : tensors) batch.elements += settings_.tensors[tensor].elements;
  batch.tensors = std::move(tensors);
  return batch;
}

void ControlPlane::learn(const Batch& batch) {
  Plan& plan = plans_.emplace_back();
  plan.number = plans_.size() - 1;
  plan.tensors = batch.tensors;
  plan.collected.resize(static_cast<std::size_t>(settings_.ranks()));
  plan.joined.resize(static_cast<std::size_t>(settings_.hosts));
  plan.bytes = static_cast<std::size_t>(batch.bytes());
  const bool is_eager = plan.bytes <= EagerExchange::capacity && hosts_.may_be_eager(plan.bytes);
  if (is_eager) plan.sent_along = plan.bytes;
  for (const std::size_t tensor : plan.tensors) plan_of_[tensor] = &plan;
}

// What is at hand goes last, as Replay::read_log() does it.
ControlPlane::Group ControlPlane::group_of(const std::vector<RoundAgreement::Decision>& together) {
  Group group;
  std::vector<std::uint64_t> exchanged;
  for (const RoundAgreement::Decision& decision : together) {
    if (decision.result.empty()) {
      exchanged.push_back(decision.plan);
    } else {
      group.at_hand.push_back(&add_batch(plans_[decision.plan].tensors));
    }
  }
  if (!exchanged.empty()) group.exchanged = batches_of_plans(exchanged);
  return group;
}

ControlPlane::Batches ControlPlane::batches_of_plans(const std::vector<std::uint64_t>& plans) {
  if (plans.size() == 1) return {&add_batch(plans_[plans.front()].tensors)};
  std::vector<std::size_t> tensors;
  std::vector<const Response*> responses;
  for (const std::uint64_t plan : plans) {
    for (const std::size_t tensor : plans_[plan].tensors) {
      tensors.push_back(tensor);
      responses.push_back(&responses_[tensor]);
    }
  }
  Batches batches;
  for (const Fusion& fusion : fuse(responses, settings_.engine.fusion_threshold)) {
    std::vector<std::size_t> members;
    for (const std::size_t index : fusion.members) members.push_back(tensors[index]);
    batches.push_back(&add_batch(std::move(members)));
  }
  return batches;
}

}  // namespace rueda::simulate
