#include "coordinator/table_owner.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>

#include "core/log.h"
#include "core/strings.h"
#include "server/shard_function.h"

namespace rueda {

namespace {

// Worked on at a time, so that other operations go on meanwhile.
constexpr std::int64_t piece_elements = 256 << 10;

bool has_values(TableVerb verb) {
  return verb == TableVerb::put || verb == TableVerb::add;
}

}  // namespace

int HeldTable::index_of(int world_rank) const {
  const auto found = std::find(ranks.begin(), ranks.end(), world_rank);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

void TableOwner::open(HeldTable table) {
  const std::uint64_t number = table.number;
  Clocks clocks(table.ranks);
  tables_.emplace(number, Table{std::move(table), std::move(clocks)});
}

bool TableOwner::receive(int peer, std::span<const std::byte> message, Time now) {
  auto decoded = decode_table_request(message);
  if (!decoded) return false;
  Job job;
  job.request = std::move(decoded->message);
  job.since = now;
  const auto found = tables_.find(job.request.table);
  if (found == tables_.end()) {
    job.status = Status(ErrorCode::invalid_argument, "the table has been closed at its owner");
  } else {
    job.status = check(found->second, peer, job);
  }
  job.payload.assign(decoded->payload.begin(), decoded->payload.end());
  const Key key{job.request.table, peer};
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
  constexpr std::uint64_t most = std::uint64_t{1} << 40;
  if (count > most) return invalid("too many items");
  std::uint64_t expected = rows ? count * sizeof(std::int64_t) : 0;
  if (has_values(request.verb)) expected += count * width * sizeof(float);
  if (request.verb == TableVerb::tick) expected = 0;
  if (request.verb != TableVerb::call && request.payload_bytes != expected) {
    return invalid("a payload of ", request.payload_bytes, " bytes instead of ", expected);
  }
  if (request.verb == TableVerb::add && table.held.in_ring_order && !request.is_replica) {
    if (request.count == table.held.own_count) return {};
    return invalid("in the order of the ring, each addition is of the whole table");
  }
  if (rows || request.verb == TableVerb::tick || request.verb == TableVerb::call) return {};
  return shard->check({request.begin, request.count, {}});
}

Shard* TableOwner::shard_of(const Table& table, const TableRequest& request) const {
  return request.is_replica ? table.held.replica.get() : table.held.own.get();
}

Selection TableOwner::selection_of(const Table& table, const Job& job) const {
  Selection selection{job.request.begin, job.request.count, {}};
  if (shard_of(table, job.request)->has_rows()) {
    // A vector's memory is aligned for any of these.
    selection.rows = {reinterpret_cast<const std::int64_t*>(job.payload.data()),
                      static_cast<std::size_t>(job.request.count)};
  }
  return selection;
}

// Whether it may go on; its payload is asked for then.
bool TableOwner::admit(Table* table, int peer, Job& job) {
  if (job.is_admitted) return true;
  const TableRequest& request = job.request;
  const bool has_turn = [&] {
    if (table == nullptr || !job.status.ok() || request.is_replica) return true;
    if (request.verb != TableVerb::add || !table->held.in_ring_order) return true;
    const std::size_t ranks = table->held.ranks.size();
    const auto index = static_cast<std::size_t>(table->held.index_of(peer));
    return index == (static_cast<std::size_t>(table->held.rank) + 1 + table->turn) % ranks;
  }();
  if (!has_turn) return false;
  if (!request.is_inline) {
    const auto bytes = static_cast<std::size_t>(request.payload_bytes);
    if (staged_ > 0 && staged_ + bytes > staging_bytes) return false;
    staged_ += bytes;
    job.payload.resize(bytes);
    job.arriving =
        mail(messages_, false, peer, request.number, MailOf::request, job.payload.data(), bytes);
  }
  job.is_admitted = true;
  return true;
}

bool TableOwner::advance(const Key& key, std::deque<Job>& queue) {
  bool moved = false;
  while (!queue.empty()) {
    Job& job = queue.front();
    const auto [number, peer] = key;
    const auto found = tables_.find(number);
    Table* const table = found == tables_.end() ? nullptr : &found->second;
    const bool waits = table != nullptr && job.status.ok() && job.request.verb == TableVerb::get &&
                       table->clocks.least() < job.request.least_clock;
    if (waits) {
      deferred_.push_back({peer, std::move(job), false});
      queue.pop_front();
      moved = true;
      continue;
    }
    const bool was_admitted = job.is_admitted;
    if (!admit(table, peer, job)) return moved;
    moved = moved || !was_admitted;
    if (job.arriving && !job.arriving->is_done()) return moved;
    if (job.arriving && job.status.ok()) job.status = job.arriving->status;
    if (table == nullptr && job.status.ok()) {
      job.status = Status(ErrorCode::invalid_argument, "the table has been closed at its owner");
    }
    if (job.status.ok() && !job.is_at_work) {
      Shard& shard = *shard_of(*table, job.request);
      if (shard.is_busy) return moved;
      start(*table, job);
    }
    if (job.status.ok() && !work(*table, peer, job)) return true;
    Job ended = std::move(job);
    queue.pop_front();
    end(table, peer, std::move(ended));
    moved = true;
  }
  return moved;
}

void TableOwner::start(Table& table, Job& job) {
  Shard& shard = *shard_of(table, job.request);
  const TableRequest& request = job.request;
  if (request.verb != TableVerb::tick && request.verb != TableVerb::call) {
    job.status = shard.check(selection_of(table, job));
    if (!job.status.ok()) return;
  }
  job.is_at_work = true;
  shard.is_busy = true;
  job.factor = request.factor;
  if (request.verb == TableVerb::add && !request.is_replica) {
    job.staleness = shard.version - std::min(shard.version, request.seen);
    if (request.by_staleness) job.factor /= static_cast<float>(1 + job.staleness);
  }
  if (request.verb == TableVerb::get) {
    const auto bytes = static_cast<std::size_t>(request.count * shard.width()) * sizeof(float);
    job.result.resize(bytes);
    if (bytes > table_inline_bytes) staged_ += bytes;
  }
}

bool TableOwner::work(Table& table, int peer, Job& job) {
  Shard& shard = *shard_of(table, job.request);
  const TableRequest& request = job.request;
  if (request.verb == TableVerb::call) {
    run_function(table, job);
  } else if (request.verb != TableVerb::tick) {
    const Selection selection = selection_of(table, job);
    const std::int64_t piece = std::max<std::int64_t>(1, piece_elements / shard.width());
    const std::int64_t to = std::min(request.count, job.done + piece);
    const auto* const values = reinterpret_cast<const float*>(
        job.payload.data() + selection.rows.size() * sizeof(std::int64_t));
    if (request.verb == TableVerb::get) {
      shard.read(selection, job.done, to, reinterpret_cast<float*>(job.result.data()));
    } else if (request.verb == TableVerb::put) {
      shard.write(selection, job.done, to, values);
    } else if (table.held.in_ring_order && !request.is_replica) {
      work_in_ring_order(table, job, to);
    } else {
      shard.add(selection, job.done, to, values, job.factor);
    }
    job.done = to;
    if (job.done < request.count) return false;
  }
  shard.is_busy = false;
  job.is_at_work = false;
  if (request.verb == TableVerb::add) {
    const bool in_turns = table.held.in_ring_order && !request.is_replica;
    if (!in_turns || table.turn == table.held.ranks.size() - 1) ++shard.version;
    if (in_turns) table.turn = (table.turn + 1) % table.held.ranks.size();
  }
  if (request.is_replica) return true;
  if (request.finishes) {
    table.clocks.finish(peer);
  } else if (request.restarts) {
    table.clocks.restart(peer);
  } else if (request.ticks || request.verb == TableVerb::tick) {
    table.clocks.tick(peer);
  }
  return true;
}

// The last to have its turn completes the sum, which then is added as one.
void TableOwner::work_in_ring_order(Table& table, Job& job, std::int64_t to) {
  const auto* const delta = reinterpret_cast<const float*>(job.payload.data());
  std::vector<float>& sum = table.step_sum;
  sum.resize(static_cast<std::size_t>(table.held.own_count));
  for (auto i = static_cast<std::size_t>(job.done); i < static_cast<std::size_t>(to); ++i) {
    sum[i] = table.turn == 0 ? delta[i] : sum[i] + delta[i];
  }
  if (table.turn + 1 < table.held.ranks.size()) return;
  table.held.own->add({job.request.begin, job.request.count, {}}, job.done, to, sum.data(),
                      job.factor);
}

void TableOwner::run_function(Table& table, Job& job) const {
  const ShardFunction* const function = find_shard_function(job.request.function);
  if (function == nullptr) {
    job.status = Status(ErrorCode::invalid_argument,
                        str("there is no function '", job.request.function, "' of shards"));
    return;
  }
  try {
    job.result = (*function)(*table.held.own, job.payload);
  } catch (const std::exception& error) {
    job.status = Status(ErrorCode::invalid_argument, str("the function '", job.request.function,
                                                         "' failed at its owner: ", error.what()));
  }
}

// A change of a shard that another rank holds as well counts once that rank has it.
void TableOwner::end(Table* table, int peer, Job job) {
  const TableRequest& request = job.request;
  const std::uint64_t version =
      table == nullptr || !job.status.ok() ? 0 : shard_of(*table, request)->version;
  const bool replicates = job.status.ok() && has_values(request.verb) && !request.is_replica &&
                          table->held.replica != nullptr;
  const bool completes_step = table != nullptr && table->held.in_ring_order && table->turn == 0;
  if (!replicates ||
      (table->held.in_ring_order && request.verb == TableVerb::add && !completes_step)) {
    return answer(peer, std::move(job), version);
  }
  replicating_.push_back({peer, std::move(job), std::make_shared<HandleState>(), version});
  Replicating& replicating = replicating_.back();
  TableRequest copy;
  copy.verb = replicating.job.request.verb;
  copy.is_replica = true;
  copy.begin = replicating.job.request.begin;
  copy.count = replicating.job.request.count;
  copy.factor = replicating.job.factor;
  std::span<const std::byte> payload = replicating.job.payload;
  if (completes_step && copy.verb == TableVerb::add) {
    const auto sum = std::as_bytes(std::span(table->step_sum));
    replicating.job.payload.assign(sum.begin(), sum.end());
    payload = replicating.job.payload;
  }
  client_.replicate(table->held.replica_holder(), std::move(copy), payload, replicating.handle,
                    table->held.use);
}

void TableOwner::answer(int peer, Job job, std::uint64_t version) {
  if (!job.request.is_inline) staged_ -= job.payload.size();
  TableAnswer answer;
  answer.number = job.request.number;
  answer.status = job.status;
  answer.version = version;
  answer.staleness = job.staleness;
  if (job.status.ok()) answer.payload_bytes = job.result.size();
  answer.is_inline = answer.payload_bytes <= table_inline_bytes;
  if (answer.is_inline) {
    return post_(peer, encode(answer, job.status.ok() ? std::span<const std::byte>(job.result)
                                                      : std::span<const std::byte>()));
  }
  if (job.request.verb == TableVerb::call) staged_ += job.result.size();
  departing_.push_back({peer, std::move(job.result), nullptr});
  Departing& departing = departing_.back();
  departing.sending = mail(messages_, true, peer, answer.number, MailOf::answer,
                           departing.bytes.data(), departing.bytes.size());
  post_(peer, encode(answer, {}));
}

bool TableOwner::step(Time now) {
  bool moved = false;
  for (auto queue = queues_.begin(); queue != queues_.end();) {
    moved = advance(queue->first, queue->second) || moved;
    queue = queue->second.empty() ? queues_.erase(queue) : std::next(queue);
  }
  moved = finish_replicas() || moved;
  for (auto each = departing_.begin(); each != departing_.end();) {
    if (!each->sending->is_done()) {
      ++each;
      continue;
    }
    staged_ -= each->bytes.size();
    each = departing_.erase(each);
    moved = true;
  }
  return (!deferred_.empty() && look_at_deferred(now)) || moved;
}

bool TableOwner::finish_replicas() {
  bool moved = false;
  for (auto each = replicating_.begin(); each != replicating_.end();) {
    if (!each->handle->is_done()) {
      ++each;
      continue;
    }
    Replicating done = std::move(*each);
    each = replicating_.erase(each);
    done.job.status = done.handle->status;
    answer(done.peer, std::move(done.job), done.version);
    moved = true;
  }
  return moved;
}

// Those whose clock has come go on; who has left has finished.
bool TableOwner::look_at_deferred(Time now) {
  bool moved = false;
  for (auto each = deferred_.begin(); each != deferred_.end();) {
    const auto found = tables_.find(each->job.request.table);
    if (found == tables_.end()) {
      each->job.status =
          Status(ErrorCode::invalid_argument, "the table has been closed at its owner");
    } else {
      Table& table = found->second;
      for (const int rank : table.clocks.behind(each->job.request.least_clock)) {
        if (has_left_(rank)) table.clocks.finish(rank);
      }
      const bool has_come = table.clocks.least() >= each->job.request.least_clock;
      const Duration waited = now - each->job.since;
      if (!has_come && patience_.error > Duration() && waited >= patience_.error) {
        each->job.status = Status(ErrorCode::stalled, tell_wait(table, *each));
      } else if (!has_come) {
        if (!each->is_told && patience_.warning > Duration() && waited >= patience_.warning) {
          each->is_told = true;
          log(LogLevel::warning, tell_wait(table, *each));
        }
        ++each;
        continue;
      }
    }
    const Key key{each->job.request.table, each->peer};
    std::deque<Job>& queue = queues_[key];
    // Before what came later, but for what is at work.
    const bool first_is_begun = !queue.empty() && queue.front().is_admitted;
    queue.insert(queue.begin() + (first_is_begun ? 1 : 0), std::move(each->job));
    each = deferred_.erase(each);
    moved = true;
  }
  return moved;
}

std::string TableOwner::tell_wait(const Table& table, const Deferred& deferred) const {
  const std::int64_t clock = deferred.job.request.least_clock;
  const std::vector<int> behind = table.clocks.behind(clock);
  std::string done;
  for (const int rank : behind) done += str(done.empty() ? "" : ", ", table.clocks.of(rank));
  return str("table '", table.held.name, "': rank ", deferred.peer, " waits for step ", clock,
             " of ", describe_ranks(behind), ", which ", behind.size() == 1 ? "has" : "have",
             " done ", done);
}

std::optional<Time> TableOwner::next_deadline() const {
  std::optional<Time> earliest;
  const auto take = [&](Time time) { earliest = earliest ? std::min(*earliest, time) : time; };
  for (const Deferred& each : deferred_) {
    if (!each.is_told && patience_.warning > Duration()) {
      take(each.job.since + patience_.warning);
    } else if (patience_.error > Duration()) {
      take(each.job.since + patience_.error);
    }
  }
  return earliest;
}

void TableOwner::lose(int rank) {
  for (auto queue = queues_.begin(); queue != queues_.end();) {
    if (queue->first.second != rank) {
      ++queue;
      continue;
    }
    const auto found = tables_.find(queue->first.first);
    for (const Job& job : queue->second) {
      if (job.is_at_work && found != tables_.end()) {
        shard_of(found->second, job.request)->is_busy = false;
      }
      if (!job.request.is_inline) staged_ -= job.payload.size();
      if (job.result.size() > table_inline_bytes) staged_ -= job.result.size();
    }
    queue = queues_.erase(queue);
  }
  deferred_.remove_if([rank](const Deferred& each) { return each.peer == rank; });
  departing_.remove_if([&](const Departing& each) {
    if (each.peer == rank) staged_ -= each.bytes.size();
    return each.peer == rank;
  });
  for (auto& [number, table] : tables_) {
    if (table.held.index_of(rank) >= 0) table.clocks.finish(rank);
  }
}

void TableOwner::fail_all() {
  for (auto& [number, table] : tables_) {
    table.held.own->is_busy = false;
    if (table.held.replica) table.held.replica->is_busy = false;
  }
  queues_.clear();
  deferred_.clear();
  replicating_.clear();
  departing_.clear();
  tables_.clear();
  staged_ = 0;
}

}  // namespace rueda
