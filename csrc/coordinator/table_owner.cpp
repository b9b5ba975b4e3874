#include "coordinator/table_owner.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>

#include "core/strings.h"
#include "server/shard_function.h"

namespace rueda {

namespace {

// Worked on at a time, so that other operations go on meanwhile.
constexpr std::int64_t piece_elements = 256 << 10;
constexpr std::chrono::microseconds look_again_after{200};

}  // namespace

Status TableOwner::closed_table() {
  return {ErrorCode::invalid_argument, "the table has been closed at its owner"};
}

int HeldTable::index_of(int world_rank) const {
  const auto found = std::find(ranks.begin(), ranks.end(), world_rank);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

void TableOwner::open(HeldTable table) {
  const std::uint64_t number = table.number;
  Clocks clocks(table.ranks);
  RingStep step(table.ranks.size(), static_cast<std::size_t>(table.rank), table.own_count);
  tables_.emplace(number, Table{std::move(table), std::move(clocks), std::move(step)});
}

TableOwner::Table* TableOwner::find(std::uint64_t number) {
  const auto found = tables_.find(number);
  return found == tables_.end() ? nullptr : &found->second;
}

// --- Requests

bool TableOwner::receive(int peer, std::span<const std::byte> message, Time now) {
  auto decoded = decode_table_request(message);
  if (!decoded) return false;
  Job job;
  job.request = std::move(decoded->message);
  job.since = now;
  const Table* const table = find(job.request.table);
  job.status = table == nullptr ? closed_table() : check(*table, peer, job);
  job.payload.assign(decoded->payload.begin(), decoded->payload.end());
  const Key key{job.request.table, peer, job.request.is_replica};
  const auto queue = queues_.try_emplace(key).first;
  queue->second.push_back(std::move(job));
  if (queue->second.size() == 1) advance(key, queue->second);
  if (queue->second.empty()) queues_.erase(queue);
  return true;
}

// What can be told from the header.
Status TableOwner::check(const Table& table, int peer, const Job& job) const {
  const TableRequest& request = job.request;
  const auto invalid = [&](const auto&... why) {
    return Status(ErrorCode::invalid_argument, str("table '", table.held.name, "': ", why...));
  };
  if (table.held.index_of(peer) < 0) return invalid("rank ", peer, " is not one of its ranks");
  const Shard* const shard = shard_of(table, request);
  if (shard == nullptr) return invalid("this rank holds no replica");
  const bool rows = shard->has_rows();
  const auto count = static_cast<std::uint64_t>(request.count);
  const auto width = static_cast<std::uint64_t>(shard->width());
  constexpr std::uint64_t most = std::uint64_t{1}
                                 << 36;  // with the widest rows less than 2^62 bytes
  if (count > most) return invalid("too many items");
  std::uint64_t expected = rows ? count * sizeof(std::int64_t) : 0;
  const auto kept =
      static_cast<std::uint64_t>(request.verb == TableVerb::put_state ? shard->states() : 1);
  if (changes_values(request.verb)) expected += count * width * kept * sizeof(float);
  if (request.verb == TableVerb::tick) expected = 0;
  if (request.verb != TableVerb::call && request.payload_bytes != expected) {
    return invalid("a payload of ", request.payload_bytes, " bytes instead of ", expected);
  }
  if (is_step_part(table, request)) {
    if (request.count == table.held.own_count) return {};
    return invalid("in the order of the ring, each addition is of the whole table");
  }
  if (rows || request.verb == TableVerb::tick || request.verb == TableVerb::call) return {};
  return shard->check({request.begin, request.count, {}});
}

bool TableOwner::is_step_part(const Table& table, const TableRequest& request) {
  return table.held.in_ring_order && request.verb == TableVerb::add && !request.is_replica;
}

// What an addition in the order of the ring cannot be part of.
Status TableOwner::refusal_of_step(const Table& table, int peer, const TableRequest& request) {
  if (!is_step_part(table, request)) return {};
  if (table.clocks.of(peer) != Clocks::finished) return table.broken;
  return {ErrorCode::invalid_argument,
          str("table '", table.held.name, "': rank ", peer,
              " has finished: in the order of the ring it adds no more")};
}

Shard* TableOwner::shard_of(const Table& table, const TableRequest& request) {
  return request.is_replica ? table.held.replica.get() : table.held.own.get();
}

Selection TableOwner::selection_of(const Table& table, const Job& job) {
  Selection selection{job.request.begin, job.request.count, {}};
  if (shard_of(table, job.request)->has_rows()) {
    // A vector's memory is aligned for any of these.
    selection.rows = {reinterpret_cast<const std::int64_t*>(job.payload.data()),
                      static_cast<std::size_t>(job.request.count)};
  }
  return selection;
}

bool TableOwner::has_room(bool is_replica, std::size_t bytes) const {
  const std::size_t staged = staged_[is_replica ? 1 : 0];
  return staged == 0 || staged + bytes <= staging_bytes;
}

void TableOwner::stage(Job& job, std::size_t bytes) {
  job.staged += bytes;
  staged_[job.request.is_replica ? 1 : 0] += bytes;
}

void TableOwner::unstage(Job& job) {
  staged_[job.request.is_replica ? 1 : 0] -= std::exchange(job.staged, 0);
}

bool TableOwner::waits_for_clock(const Table& table, const Job& job) const {
  return job.status.ok() && job.request.verb == TableVerb::get &&
         table.clocks.least() < job.request.min_clock;
}

bool TableOwner::waits_for_turn(const Table* table, int peer, const Job& job) const {
  if (table == nullptr || !job.status.ok() || !is_step_part(*table, job.request)) return false;
  if (!table->broken.ok()) return false;
  return table->step.is_summed() ||
         table->step.turn() != static_cast<std::size_t>(table->held.index_of(peer));
}

// Whether it may go on; its payload is asked for then.
bool TableOwner::admit(const Table* table, int peer, Job& job) {
  if (job.is_admitted) return true;
  if (waits_for_turn(table, peer, job)) return false;
  const TableRequest& request = job.request;
  if (!request.is_inline) {
    const auto bytes = static_cast<std::size_t>(request.payload_bytes);
    if (job.status.ok() && !has_room(request.is_replica, bytes)) return false;
    if (job.status.ok()) job.status = make_room(job.payload, bytes);
    if (!job.status.ok()) {
      refuse_mail(messages_, peer, request.number, MailOf::request);
    } else {
      stage(job, bytes);
      job.arriving =
          mail(messages_, false, peer, request.number, MailOf::request, job.payload.data(), bytes);
    }
  }
  job.is_admitted = true;
  return true;
}

bool TableOwner::advance(const Key& key, std::deque<Job>& queue) {
  bool moved = false;
  while (!queue.empty()) {
    Job& job = queue.front();
    Table* const table = find(key.table);
    if (table == nullptr && job.status.ok()) job.status = closed_table();
    if (table != nullptr && !job.is_at_work && waits_for_clock(*table, job)) {
      deferred_.push_back({key.peer, std::move(job)});
      queue.pop_front();
      moved = true;
      continue;
    }
    if (table != nullptr && job.status.ok() && !job.is_admitted) {
      job.status = refusal_of_step(*table, key.peer, job.request);
    }
    const bool was_admitted = job.is_admitted;
    if (!admit(table, key.peer, job)) return moved;
    moved = moved || !was_admitted;
    if (job.arriving && !job.arriving->is_done()) return moved;
    if (job.arriving && job.status.ok()) job.status = job.arriving->status;
    if (job.status.ok() && !job.is_at_work && !start(*table, key.peer, job)) return moved;
    if (job.status.ok() && !work(*table, job)) return true;
    Job ended = std::move(job);
    queue.pop_front();
    end(table, key.peer, std::move(ended));
    moved = true;
  }
  return moved;
}

// --- Work

// False where it has to wait. What is wrong is in the job's status.
bool TableOwner::start(Table& table, int peer, Job& job) {
  Shard& shard = *shard_of(table, job.request);
  if (!shard.acquire()) {
    // Nobody tells when another rank that works on it by itself lets go.
    if (!shard.is_busy()) look_again_ = Clock::now() + look_again_after;
    return false;
  }
  const bool is_prepared = prepare(table, peer, job, shard);
  job.is_at_work = is_prepared && job.status.ok();
  if (!job.is_at_work) shard.release();
  return is_prepared;
}

// False where there is no room for what comes of it.
bool TableOwner::prepare(Table& table, int peer, Job& job, const Shard& shard) {
  const TableRequest& request = job.request;
  if (request.verb != TableVerb::tick && request.verb != TableVerb::call) {
    job.status = shard.check(selection_of(table, job));
    if (!job.status.ok()) return true;
  }
  job.factor = request.factor;
  if (request.verb == TableVerb::add && !request.is_replica) {
    job.staleness = shard.version() - std::min(shard.version(), request.seen);
    if (request.by_staleness) job.factor /= static_cast<float>(1 + job.staleness);
  }
  if (is_step_part(table, request)) {
    if (!table.step.is_begun()) table.step_factor = job.factor;
    if (table.step_factor != job.factor) {
      table.step_error =
          Status(ErrorCode::mismatch,
                 str("table '", table.held.name, "': rank ", peer, " adds with factor ", job.factor,
                     ", others of the same step with ", table.step_factor,
                     ": in the order of the ring all give the same"),
                 -1,
                 {.tensor = table.held.name,
                  .field = "factor",
                  .values = {str(job.factor), str(table.step_factor)}});
    }
  }
  if (request.verb == TableVerb::get) {
    const auto bytes = static_cast<std::size_t>(request.count * shard.width()) * sizeof(float);
    if (bytes > table_inline_bytes) {
      if (!has_room(false, bytes)) return false;
      stage(job, bytes);
    }
    job.status = make_room(job.result, bytes);
  }
  return true;
}

bool TableOwner::work(Table& table, Job& job) {
  if (job.request.verb == TableVerb::call) {
    run_function(table, job);
  } else if (job.request.verb != TableVerb::tick && !work_on_values(table, job)) {
    return false;
  }
  Shard& shard = *shard_of(table, job.request);
  if (job.request.verb == TableVerb::add && job.status.ok() && !is_step_part(table, job.request)) {
    shard.count_addition();
  }
  job.version = shard.version();
  shard.release();
  job.is_at_work = false;
  return true;
}

// The next piece.
bool TableOwner::work_on_values(Table& table, Job& job) {
  Shard& shard = *shard_of(table, job.request);
  const TableRequest& request = job.request;
  const Selection selection = selection_of(table, job);
  const std::int64_t piece = std::max<std::int64_t>(1, piece_elements / shard.width());
  if (changes_values(request.verb) && job.reserved < request.count) {
    const std::int64_t to = std::min(request.count, job.reserved + piece);
    job.status = shard.reserve(selection, job.reserved, to, job.places);
    job.reserved = to;
    if (!job.status.ok()) {
      job.status =
          Status(job.status.code(), str("table '", table.held.name, "': ", job.status.message()));
      return true;
    }
    if (job.reserved < request.count) return false;
  }
  const std::int64_t to = std::min(request.count, job.done + piece);
  const auto* const values = reinterpret_cast<const float*>(
      job.payload.data() + selection.rows.size() * sizeof(std::int64_t));
  if (request.verb == TableVerb::get) {
    shard.read(selection, job.done, to, reinterpret_cast<float*>(job.result.data()));
  } else if (request.verb == TableVerb::put) {
    shard.write(selection, job.places, job.done, to, values);
  } else if (request.verb == TableVerb::put_state) {
    shard.write_state(selection, job.places, job.done, to, values);
  } else if (is_step_part(table, request)) {
    table.step.add(values, job.done, to);
  } else {
    shard.add(selection, job.places, job.done, to, values, job.factor);
  }
  job.done = to;
  return job.done == request.count;
}

void TableOwner::run_function(const Table& table, Job& job) {
  const ShardFunction* const function = find_shard_function(job.request.function);
  const auto failed = [&](const auto& why) {
    job.status = Status(ErrorCode::invalid_argument, str("the function '", job.request.function,
                                                         "' failed at its owner: ", why));
  };
  if (function == nullptr) {
    job.status = Status(ErrorCode::invalid_argument,
                        str("there is no function '", job.request.function, "' of shards"));
    return;
  }
  try {
    job.result = (*function)(*table.held.own, job.payload);
  } catch (const std::exception& error) {
    failed(error.what());
  } catch (...) {
    failed("it threw what is no std::exception");
  }
}

void TableOwner::count_clock(Table& table, int peer, const TableRequest& request) {
  if (request.is_replica) return;
  if (request.finishes) {
    table.clocks.finish(peer);
  } else if (request.restarts) {
    table.clocks.restart(peer, request.min_clock);
  } else if (request.ticks || request.verb == TableVerb::tick) {
    table.clocks.tick(peer);
  }
  const auto index = static_cast<std::size_t>(table.held.index_of(peer));
  table.held.use->clocks[index].store(table.clocks.of(peer));
  table.held.own->tell_least_clock(table.clocks.least());
}

// --- The order of the ring

// Whether anything moved. The last to have its turn completes the sum, which then is added as one.
bool TableOwner::advance_step(Table& table) {
  RingStep& step = table.step;
  if (!step.is_summed()) {
    const std::size_t turn = step.turn();
    step.skip([&](std::size_t index) {
      const int rank = table.held.ranks[index];
      return table.clocks.of(rank) == Clocks::finished || has_left_(rank);
    });
    if (!step.is_summed()) return step.turn() != turn;
  }
  if (!table.step_error.ok()) {  // for all, whose next additions are of the next step
    for (Asked& asked : std::exchange(table.in_step, {})) {
      asked.job.status = table.step_error;
      answer(asked.peer, std::move(asked.job), 0);
    }
    table.step_error = {};
    step.restart();
    return true;
  }
  Shard& shard = *table.held.own;
  const std::int64_t count = table.held.own_count;
  if (table.step_done == 0 && !shard.acquire()) return false;
  const std::int64_t to = std::min(count, table.step_done + piece_elements);
  const auto begin = table.in_step.front().job.request.begin;
  shard.add({begin, count, {}}, {}, table.step_done, to, step.sum().data(), table.step_factor);
  table.step_done = to;
  if (to < count) return true;
  table.step_done = 0;
  shard.count_addition();
  shard.release();
  Replicating replicating;
  replicating.asked = std::exchange(table.in_step, {});
  replicating.version = shard.version();
  for (const Asked& asked : replicating.asked) count_clock(table, asked.peer, asked.job.request);
  step.restart();
  if (table.held.replica != nullptr) {
    const auto sum = std::as_bytes(step.sum());
    replicating.sum.assign(sum.begin(), sum.end());
    const TableRequest request = replicating.asked.front().job.request;
    replicate(table, std::move(replicating), request, table.step_factor);
    return true;
  }
  for (Asked& asked : replicating.asked) {
    answer(asked.peer, std::move(asked.job), replicating.version);
  }
  return true;
}

// --- The end of requests

// A change of a shard that another rank holds as well counts once that rank has it.
void TableOwner::end(Table* table, int peer, Job job) {
  if (table == nullptr || !job.status.ok()) return answer(peer, std::move(job), 0);
  const TableRequest& request = job.request;
  if (is_step_part(*table, request)) {
    unstage(job);
    job.payload = {};
    table->in_step.push_back({peer, std::move(job)});
    return table->step.pass();
  }
  count_clock(*table, peer, request);
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

void TableOwner::replicate(Table& table, Replicating replicating, const TableRequest& request,
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
  const bool is_step = is_step_part(table, request);
  const std::span<const std::byte> payload =
      is_step ? std::span<const std::byte>(placed.sum) : placed.asked.front().job.payload;
  client_.replicate(table.held.replica_holder(), std::move(copy), payload, placed.handle,
                    table.held.use);
}

void TableOwner::answer(int peer, Job job, std::uint64_t version) {
  metrics_.table_answers_sent.add(1);
  TableAnswer answer;
  answer.number = job.request.number;
  answer.status = job.status;
  answer.version = version;
  answer.staleness = job.staleness;
  if (job.status.ok()) answer.payload_bytes = job.result.size();
  answer.is_inline = answer.payload_bytes <= table_inline_bytes;
  if (answer.is_inline) {
    unstage(job);
    return post_(peer, encode(answer, job.status.ok() ? std::span<const std::byte>(job.result)
                                                      : std::span<const std::byte>()));
  }
  unstage(job);
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
