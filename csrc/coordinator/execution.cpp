#include "coordinator/execution.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/in_quotes.h"
#include "core/strings.h"
#include "plan/fusion_plan.h"

namespace rueda {

namespace {

// Turns `status` into the error of the operation of this name.
Status naming(const std::string& name, const Status& status) {
  ErrorDetails details = status.details();
  details.tensor = name;
  return {status.code(), str(in_quotes(name), ": ", status.message()), status.peer(), details};
}

// The others are opened when they are first needed.
constexpr std::array opened_at_once = {BatchOrder::negotiated, BatchOrder::replayed};

std::uint64_t channel_key(int set_id, std::size_t order) {
  return (static_cast<std::uint64_t>(set_id) + 1) * batch_orders + order;
}

// No process set has such a number.
std::uint64_t stage_key(int set_id, std::size_t order, std::size_t stage) {
  return std::uint64_t{1} << 61 | channel_key(set_id, order) << 4 | stage;
}

}  // namespace

Execution::Execution(const ExecutionContext& context, const Lane& lane,
                     std::vector<BatchMember> members, Time now, const Contributions& contributions)
    : context_(context),
      lane_(lane),
      members_(std::move(members)),
      unfused_(context_, lane_, members_.front()),
      started_at_(now),
      last_moved_(now) {
  Metrics::PerCollective& counted = context_.metrics->of(request().collective);
  lane_.counters = &counted.transfers;
  const bool moves_data = request().collective != Collective::persistent_allreduce;
  if (moves_data) counted.batches.add(1);
  for (const BatchMember& member : members_) {
    record_start(member);
    if (!member.submission) {
      context_.metrics->absent_filled.add(1);
      continue;
    }
    if (!moves_data) continue;
    counted.tensors.add(1);
    counted.tensor_bytes.add(static_cast<std::int64_t>(member.submission->request.bytes()));
  }
  if (members_.size() > 1) {
    context_.metrics->tensors_fused.add(static_cast<std::int64_t>(members_.size()));
  }
  try {
    await_inputs();
    if (!contributions && priority() != 0) set_priority(priority());
    start(contributions);
  } catch (const std::bad_alloc&) {
    give_up_for_memory();
  }
}

// The other ranks do their part, or wait for this one, so this ends more than the operation.
void Execution::give_up_for_memory() {
  status_ = Status(ErrorCode::internal,
                   str("rank ", lane_.transport->rank(), " has no memory left for it"));
  done_ = true;
}

Execution::~Execution() {
  if (has_priority_) set_priority(0);
}

void Execution::set_priority(std::int32_t priority) {
  has_priority_ = priority != 0;
  lane_.transport->set_priority(lane_.tag, priority);
}

void Execution::start(const Contributions& contributions) {
  operation_ = request().collective == Collective::allreduce ? allreduce(contributions)
                                                             : unfused_.start(contributions);
  if (operation_) return;
  status_ = Status(ErrorCode::internal, "not a collective that moves data");
  done_ = true;
}

// On a GPU, the collective starts after the tensors' streams have finished with them.
void Execution::await_inputs() {
  for (const BatchMember& member : members_) {
    if (member.submission && member.submission->ready) {
      context_.devices->await(member.submission->ready);
    }
  }
}

std::unique_ptr<Operation> Execution::allreduce(const Contributions& contributions) {
  std::vector<Piece> pieces;
  pieces.reserve(members_.size());
  for (const BatchMember& member : members_) {
    Piece piece{nullptr, nullptr, member.response->request.count()};
    if (member.submission) {
      piece.input = member.submission->input;
      // A rank without leaves may have no address.
      if (piece.input == nullptr && !request().leaf_ranks.empty()) {
        piece.input = member.submission->output;
      }
      piece.output = member.submission->output;
      piece.kept = member.submission->kept;
    }
    pieces.push_back(piece);
  }
  const Reduction reduction =
      reduction_of(*members_.front().response, lane_.size(), context_.averages_over_all);
  if (contributions) return eager_allreduce(lane_, reduction, pieces, contributions);
  Backend& backend = request().on_gpu ? *context_.devices : *context_.backend;
  return backend.allreduce(lane_, reduction, std::move(pieces));
}

bool Execution::advance(Time now) {
  if (done_) return false;
  bool moved = false;
  try {
    moved = operation_->advance();
  } catch (const std::bad_alloc&) {
    give_up_for_memory();
    return true;
  }
  if (moved) last_moved_ = now;
  if (!operation_->done()) return moved;
  done_ = true;
  status_ = operation_->status();
  if (!status_.ok() && operation_->failed_everywhere()) {
    fail_by_name(std::exchange(status_, Status()));
    return true;
  }
  if (status_.ok()) {
    record_end();
    complete_handles();
  }
  return true;
}

void Execution::complete_handles() {
  const auto finished = operation_->finished();
  for (std::size_t piece = 0; piece < members_.size(); ++piece) {
    BatchMember& member = members_[piece];
    if (!member.submission) continue;
    if (const Status status = operation_->status_of_piece(piece); !status.ok()) {
      context_.complete(*member.submission, naming(member.response->request.name, status));
      continue;
    }
    OperationOutput output = members_.size() == 1 ? unfused_.take_output() : OperationOutput{};
    output.device = member.submission->device;
    output.finished = finished;
    context_.complete(*member.submission, {}, std::move(output));
  }
}

void Execution::fail(const Status& reason) {
  end_with([&](const BatchMember&) { return reason; });
}

void Execution::fail_by_name(const Status& reason) {
  end_with(
      [&](const BatchMember& member) { return naming(member.response->request.name, reason); });
}

template <class StatusOf>
void Execution::end_with(const StatusOf& status_of) {
  operation_.reset();
  done_ = true;
  for (BatchMember& member : members_) {
    if (!member.submission) continue;
    context_.complete(*member.submission, status_of(member));
  }
}

std::string Execution::describe() const {
  const std::string name = in_quotes(request().name);
  return members_.size() == 1 ? str(name_of(request().collective), " of ", name)
                              : str("batch of ", members_.size(), " tensors beginning with ", name);
}

std::vector<int> Execution::awaited() const {
  return operation_ ? operation_->awaited() : std::vector<int>{};
}

void Execution::record_start(const BatchMember& member) {
  if (member.submission) context_.recorder->start(member.submission->handle->flight.number);
  context_.timeline->write([&](TimelineWriter& writer) {
    std::optional<TimelineWriter::Wait> wait;
    if (const auto& submission = member.submission) {
      wait = {submission->submitted_at, submission->taken_at, started_at_};
    }
    writer.started(context_.set_id, member.response->request, wait, started_at_);
  });
}

void Execution::record_end() {
  context_.timeline->write([&](TimelineWriter& writer) {
    const Time now = Clock::now();
    const std::vector<Operation::Phase> phases = operation_->phases();
    for (const BatchMember& member : members_) {
      writer.ended(context_.set_id, member.response->request, started_at_, now, phases);
    }
  });
}

// --- All batches of a set

Batches::Batches(std::shared_ptr<const ProcessSetMembers> members, const HostParts& parts,
                 std::unique_ptr<const SetHosts> hosts, const Options& options,
                 const ExecutionContext& context, Transport& transport,
                 std::shared_ptr<ControlRoom> room)
    : members_(std::move(members)),
      max_in_flight_(
          static_cast<std::size_t>(std::max<std::int64_t>(1, options.batches_in_flight))),
      context_(context),
      room_(std::move(room)),
      here_(hosts ? parts.own : HostMembers{}),
      rank_here_(parts.rank),
      hosts_(std::move(hosts)) {
  lane_.transport = &transport;
  lane_.members = &members_->ranks;
  lane_.rank = members_->rank;
  lane_.set_id = members_->id;
  lane_.hosts = hosts_.get();
  lane_.codec_chunk_bytes = std::max<std::int64_t>(1, options.ring_chunk);
  lane_.chunk_bytes = lane_.codec_chunk_bytes;
  if (hosts_) lane_.chunk_bytes = std::min(lane_.chunk_bytes, hosts_->chunk_bytes());
  for (const BatchOrder order : opened_at_once) {
    open_channels(orders_[static_cast<std::size_t>(order)]);
  }
}

std::shared_ptr<ControlRoom> Batches::reserve(const HostMembers& host, bool spans_hosts) {
  if (!host) return nullptr;
  // One before and several after the inter-host step.
  const std::size_t channels = (spans_hosts ? 1 + after_channels : 1) * batch_orders;
  const std::size_t slot = spans_hosts ? stage_slot_bytes : slot_bytes;
  return HostMemory::reserve(host.memory,
                             std::vector<std::size_t>(channels, ChannelMemory::bytes_for(slot)));
}

void Batches::forgo(const HostMembers& host, bool spans_hosts, int set_id) {
  for (const BatchOrder order : opened_at_once) {
    const auto number = static_cast<std::size_t>(order);
    const std::size_t stages = spans_hosts ? 1 + after_channels : 0;
    if (!spans_hosts) host.memory->retire(channel_key(set_id, number), host.ranks);
    for (std::size_t stage = 0; stage < stages; ++stage) {
      host.memory->retire(stage_key(set_id, number, stage), host.ranks);
    }
  }
}

void Batches::open_channels(Order& order) {
  const auto number = static_cast<std::size_t>(&order - orders_.data());
  const auto open = [&](const HostMembers& host, int rank, std::uint64_t key, std::size_t slot) {
    return std::make_unique<HostChannel>(host.memory, host.ranks, rank, key,
                                         HostChannel::WokenBy::rank, slot, room_.get());
  };
  const int id = members_->id;
  if (context_.host && !order.channel) {
    order.channel = open(context_.host, members_->rank, channel_key(id, number), slot_bytes);
  }
  if (here_ && !order.before_links) {
    order.before_links = open(here_, rank_here_, stage_key(id, number, 0), stage_slot_bytes);
    for (std::size_t i = 0; i < after_channels; ++i) {
      order.after_links[i] =
          open(here_, rank_here_, stage_key(id, number, i + 1), stage_slot_bytes);
    }
  }
}

void Batches::start(std::vector<BatchMember> members, BatchOrder order, Time now,
                    const Contributions& contributions) {
  if (members.front().response->request.on_gpu) order = BatchOrder::on_gpu;
  const auto number = static_cast<std::size_t>(order);
  Order& own = orders_[number];
  open_channels(own);
  Lane lane = lane_;
  lane.channel = own.channel.get();
  lane.before_links = own.before_links.get();
  lane.after_links = own.after_links[own.next_batch % after_channels].get();
  // A batch whose data has arrived needs no messages, nor the same order on all ranks.
  if (!contributions) lane.tag = batch_tag(members_->id, order, own.next_batch++);
  // The most urgent is advanced first.
  const std::int32_t priority = members.front().response->request.priority;
  const auto place = std::find_if(running_.begin(), running_.end(),
                                  [&](const auto& other) { return other->priority() < priority; });
  running_.insert(
      place, std::make_unique<Execution>(context_, lane, std::move(members), now, contributions));
}

bool Batches::advance(Time now) {
  bool moved = false;
  for (auto running = running_.begin(); running != running_.end();) {
    Execution* execution = running->get();
    moved = execution->advance(now) || moved;
    if (!execution->done() || !execution->status().ok()) {
      ++running;
      continue;
    }
    running = running_.erase(running);
  }
  return moved;
}

Load Batches::load() const {
  Load load = load_of(running_.size(), max_in_flight_, hosts_ != nullptr);
  if (!running_.empty()) load.most_urgent = running_.front()->priority();
  return load;
}

bool Batches::uses_transport() const {
  return std::any_of(running_.begin(), running_.end(),
                     [](const auto& execution) { return execution->uses_transport(); });
}

bool Batches::must_be_polled() const {
  return std::any_of(running_.begin(), running_.end(),
                     [](const auto& execution) { return execution->must_be_polled(); });
}

bool Batches::may_be_eager(std::size_t bytes) const {
  return hosts_ ? hosts_->may_be_eager(bytes) : context_.backend->may_be_eager(bytes);
}

Status Batches::broken(Time now, Duration timeout) const {
  for (const auto& execution : running_) {
    if (execution->done()) {
      return Status(execution->status().code(), str("the ", execution->describe(), " failed"),
                    execution->status().peer())
          .because(execution->status());
    }
    if (timeout > Duration::zero() && now - execution->last_moved() >= timeout) {
      const std::vector<int> awaited = execution->awaited();
      return {ErrorCode::timeout,
              str("the ", execution->describe(), " has made no progress for ",
                  to_seconds(now - execution->last_moved()), " s: waiting for ",
                  describe_ranks(awaited)),
              awaited.empty() ? -1 : awaited.front()};
    }
  }
  return {};
}

std::optional<Time> Batches::oldest_move() const {
  std::optional<Time> oldest;
  for (const auto& execution : running_) {
    if (!oldest || execution->last_moved() < *oldest) oldest = execution->last_moved();
  }
  return oldest;
}

std::vector<std::string> Batches::fail(const Status& reason) {
  std::vector<std::string> interrupted;
  for (const auto& execution : running_) {
    interrupted.push_back(execution->describe());
    execution->fail(error_of(interrupted.back(), execution->name(), reason));
  }
  running_.clear();
  for (const Order& order : orders_) {
    const auto stop = [](const std::unique_ptr<HostChannel>& channel) {
      if (channel) channel->stop();
    };
    stop(order.channel);
    stop(order.before_links);
    std::for_each(order.after_links.begin(), order.after_links.end(), stop);
  }
  return interrupted;
}

}  // namespace rueda
