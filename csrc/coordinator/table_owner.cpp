#include "coordinator/table_owner.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "core/strings.h"

namespace rueda {

namespace {

constexpr std::chrono::microseconds look_again_after{200};

// Bytes of a result that count against the limit, which exempts those that travel with a header.
std::size_t counted(std::size_t result_bytes) {
  return result_bytes > table_inline_bytes ? result_bytes : 0;
}

}  // namespace

Status TableOwner::closed_table() {
  return {ErrorCode::invalid_argument, "the table has been closed at its owner"};
}

void TableOwner::open(HeldTable table) {
  const std::uint64_t number = table.number;
  tables_.emplace(number, std::move(table));
}

void TableOwner::close(std::uint64_t number) {
  ServedTable* const table = find(number);
  if (table == nullptr) return;
  if (table->step_done > 0) table->held.own->release();
  refuse_step(*table, closed_table());
  tables_.erase(number);
}

ServedTable* TableOwner::find(std::uint64_t number) {
  const auto found = tables_.find(number);
  return found == tables_.end() ? nullptr : &found->second;
}

// --- Requests

bool TableOwner::receive(int peer, std::span<const std::byte> message, Time now) {
  auto decoded = decode_table_request(message);
  if (!decoded) return false;
  TableJob job;
  job.request = std::move(decoded->message);
  job.since = now;
  const ServedTable* const table = find(job.request.table);
  job.status = table == nullptr ? closed_table() : table->check(peer, job.request);
  job.payload.assign(decoded->payload.begin(), decoded->payload.end());
  const Key key{job.request.table, peer, job.request.is_replica};
  const auto queue = queues_.try_emplace(key).first;
  queue->second.push_back(std::move(job));
  if (queue->second.size() == 1) advance(key, queue->second);
  if (queue->second.empty()) queues_.erase(queue);
  return true;
}

bool TableOwner::has_room(bool is_replica, std::size_t bytes) const {
  const std::size_t staged = staged_[is_replica ? 1 : 0];
  return staged == 0 || staged + bytes <= staging_bytes;
}

void TableOwner::stage(TableJob& job, std::size_t bytes) {
  job.staged += bytes;
  staged_[job.request.is_replica ? 1 : 0] += bytes;
}

void TableOwner::unstage(TableJob& job) {
  staged_[job.request.is_replica ? 1 : 0] -= std::exchange(job.staged, 0);
}

// Whether the job may proceed; if so, its payload is requested.
bool TableOwner::admit(const ServedTable* table, int peer, TableJob& job) {
  if (job.is_admitted) return true;
  if (table != nullptr && table->waits_for_turn(peer, job)) return false;
  const TableRequest& request = job.request;
  if (!request.is_inline) {
    const auto bytes = static_cast<std::size_t>(request.payload_bytes);
    // With room for the result: two jobs that had one of both would wait for each other forever.
    const std::size_t both = bytes + (job.status.ok() ? counted(table->result_bytes(request)) : 0);
    if (job.status.ok() && !has_room(request.is_replica, both)) return false;
    if (job.status.ok()) job.status = make_room(job.payload, bytes);
    if (!job.status.ok()) {
      refuse_mail(messages_, peer, request.number, MailOf::request);
    } else {
      stage(job, both);
      job.arriving =
          mail(messages_, false, peer, request.number, MailOf::request, job.payload.data(), bytes);
    }
  }
  job.is_admitted = true;
  return true;
}

bool TableOwner::advance(const Key& key, std::deque<TableJob>& queue) {
  bool moved = false;
  while (!queue.empty()) {
    TableJob& job = queue.front();
    ServedTable* const table = find(key.table);
    if (table == nullptr && job.status.ok()) job.status = closed_table();
    if (table != nullptr && !job.is_at_work && table->waits_for_clock(job)) {
      deferred_.push_back({key.peer, std::move(job)});
      queue.pop_front();
      moved = true;
      continue;
    }
    if (table != nullptr && job.status.ok() && !job.is_admitted) {
      job.status = table->refusal_of_step(key.peer, job.request);
    }
    const bool was_admitted = job.is_admitted;
    if (!admit(table, key.peer, job)) return moved;
    moved = moved || !was_admitted;
    if (job.arriving && !job.arriving->is_done()) return moved;
    if (job.arriving && job.status.ok()) job.status = job.arriving->status;
    if (job.status.ok() && !job.is_at_work && !start(*table, key.peer, job)) return moved;
    if (job.status.ok() && !table->work(job)) return true;
    TableJob ended = std::move(job);
    queue.pop_front();
    end(table, key.peer, std::move(ended));
    moved = true;
  }
  return moved;
}

// --- Work

// False if it must wait. Errors are put into the job's status.
bool TableOwner::start(ServedTable& table, int peer, TableJob& job) {
  Shard& shard = table.shard_of(job.request);
  if (!shard.acquire()) {
    // There is no notification when another rank ends its direct access.
    if (!shard.is_busy()) look_again_ = Clock::now() + look_again_after;
    return false;
  }
  table.prepare(peer, job);
  const bool has_room = make_room_for_result(job, table.result_bytes(job.request));
  job.is_at_work = has_room && job.status.ok();
  if (!job.is_at_work) shard.release();
  return has_room;
}

bool TableOwner::make_room_for_result(TableJob& job, std::size_t bytes) {
  if (!job.status.ok() || job.request.verb != TableVerb::get) return true;
  if (job.request.is_inline && counted(bytes) > 0) {  // otherwise reserved with its payload
    if (!has_room(false, bytes)) return false;
    stage(job, bytes);
  }
  job.status = make_room(job.result, bytes);
  return true;
}

// --- Ring order

// Returns whether anything moved. The last rank's turn completes the sum, which is added as one.
bool TableOwner::advance_step(ServedTable& table) {
  RingStep& step = table.step;
  if (!step.is_summed()) {
    const std::size_t turn = step.turn();
    step.skip([&](std::size_t index) {
      const int rank = table.held.ranks[index];
      return table.clocks.of(rank) == Clocks::finished || has_left_(rank);
    });
    if (!step.is_summed()) return step.turn() != turn;
  }
  if (!table.step_error.ok()) {  // fails all; their next additions are of the next step
    refuse_step(table, std::exchange(table.step_error, {}));
    return true;
  }
  if (table.step_done == 0 && !table.held.own->acquire()) return false;
  if (!table.work_on_step()) return true;
  Replicating replicating;
  replicating.asked = std::exchange(table.in_step, {});
  replicating.version = table.held.own->version();
  for (const AskedOfTable& asked : replicating.asked)
    table.count_clock(asked.peer, asked.job.request);
  step.restart();
  if (table.held.replica != nullptr) {
    const auto sum = std::as_bytes(step.sum());
    replicating.sum.assign(sum.begin(), sum.end());
    const TableRequest request = replicating.asked.front().job.request;
    replicate(table, std::move(replicating), request, table.step_factor);
    return true;
  }
  for (AskedOfTable& asked : replicating.asked) {
    answer(asked.peer, std::move(asked.job), replicating.version);
  }
  return true;
}

// --- The end of requests

// A change of a shard with a replica is answered once the replica has it.
void TableOwner::end(ServedTable* table, int peer, TableJob job) {
  if (table == nullptr || !job.status.ok()) return answer(peer, std::move(job), 0);
  const TableRequest& request = job.request;
  if (table->is_step_part(request)) {
    unstage(job);
    job.payload = {};
    table->in_step.push_back({peer, std::move(job)});
    return table->step.pass();
  }
  table->count_clock(peer, request);
  const std::uint64_t version = job.version;
  if (!changes_values(request.verb) || request.is_replica || table->held.replica == nullptr) {
    return answer(peer, std::move(job), version);
  }
  const TableRequest copied = request;
  const float factor = job.factor;
  Replicating replicating;
  replicating.version = version;
  replicating.asked.push_back({peer, std::move(job)});
  replicate(*table, std::move(replicating), copied, factor);
}

void TableOwner::replicate(ServedTable& table, Replicating replicating, const TableRequest& request,
                           float factor) {
  TableRequest copy;
  copy.verb = request.verb;
  copy.is_replica = true;
  copy.begin = request.begin;
  copy.count = request.count;
  copy.factor = factor;
  replicating.handle = std::make_shared<HandleState>();
  replicating_.push_back(std::move(replicating));
  const Replicating& placed = replicating_.back();
  const bool is_step = table.is_step_part(request);
  const std::span<const std::byte> payload =
      is_step ? std::span<const std::byte>(placed.sum) : placed.asked.front().job.payload;
  client_.replicate(table.held.replica_holder(), std::move(copy), payload, placed.handle,
                    table.held.use);
}

void TableOwner::answer(int peer, TableJob job, std::uint64_t version) {
  metrics_.table_answers_sent.add(1);
  TableAnswer answer;
  answer.number = job.request.number;
  answer.status = job.status;
  answer.version = version;
  answer.staleness = job.staleness;
  if (job.status.ok()) answer.payload_bytes = job.result.size();
  answer.is_inline = answer.payload_bytes <= table_inline_bytes;
  unstage(job);
  if (answer.is_inline) {
    return post_(peer, encode(answer, job.status.ok() ? std::span<const std::byte>(job.result)
                                                      : std::span<const std::byte>()));
  }
  Departing& departing = departing_.emplace_back();
  departing.peer = peer;
  departing.bytes = std::move(job.result);
  departing.staged = departing.bytes.size();
  staged_[0] += departing.staged;
  metrics_.table_bytes_sent.add(static_cast<std::int64_t>(departing.staged));
  departing.sending = mail(messages_, true, peer, answer.number, MailOf::answer,
                           departing.bytes.data(), departing.bytes.size());
  post_(peer, encode(answer, {}));
}

}  // namespace rueda
