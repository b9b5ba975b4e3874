// What a table's owner waits for, and what happens to it when ranks fail.
#include <algorithm>
#include <iterator>
#include <utility>

#include "coordinator/table_owner.h"
#include "core/log.h"
#include "core/strings.h"

namespace rueda {

// --- Progress

bool TableOwner::step(Time now) {
  bool moved = false;
  look_again_.reset();
  for (auto queue = queues_.begin(); queue != queues_.end();) {
    moved = advance(queue->first, queue->second) || moved;
    queue = queue->second.empty() ? queues_.erase(queue) : std::next(queue);
  }
  for (auto& [number, table] : tables_) {
    if (table.held.in_ring_order) moved = advance_step(table) || moved;
  }
  moved = finish_replicas() || moved;
  moved = finish_departures() || moved;
  moved = look_at_steps(now) || moved;
  return (!deferred_.empty() && look_at_deferred(now)) || moved;
}

bool TableOwner::in_flight() const {
  return !queues_.empty() || !departing_.empty() || !replicating_.empty();
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
    for (AskedOfTable& asked : done.asked) {
      asked.job.status = done.handle->status;
      answer(asked.peer, std::move(asked.job), done.version);
    }
    moved = true;
  }
  return moved;
}

bool TableOwner::finish_departures() {
  const std::size_t before = departing_.size();
  departing_.remove_if([this](const Departing& each) {
    const bool is_over = each.sending->is_done();
    if (is_over) staged_[0] -= each.staged;
    return is_over;
  });
  return departing_.size() != before;
}

// Resumes requests whose clock has been reached; a rank that has left counts as finished.
bool TableOwner::look_at_deferred(Time now) {
  bool moved = false;
  for (auto each = deferred_.begin(); each != deferred_.end();) {
    TableJob& job = each->job;
    ServedTable* const table = find(job.request.table);
    if (table == nullptr) {
      job.status = closed_table();
    } else {
      for (const int rank : table->clocks.behind(job.request.min_clock)) {
        if (!has_left_(rank)) continue;
        table->finish(rank);
      }
      if (table->waits_for_clock(job)) {
        job.status = overdue(job, now, [&] { return table->tell_clock(*each); });
        if (job.status.ok()) {
          ++each;
          continue;
        }
      }
    }
    std::deque<TableJob>& queue = queues_[{job.request.table, each->peer, false}];
    // Ahead of later requests, but behind one that has begun.
    const bool first_is_begun = !queue.empty() && queue.front().is_admitted;
    queue.insert(queue.begin() + (first_is_begun ? 1 : 0), std::move(job));
    each = deferred_.erase(each);
    moved = true;
  }
  return moved;
}

// Returns whether the next step() has anything new to do.
bool TableOwner::look_at_steps(Time now) {
  bool moved = false;
  for (auto& [key, queue] : queues_) {
    ServedTable* const table = find(key.table);
    TableJob& job = queue.front();
    if (job.is_admitted || table == nullptr || !table->waits_for_turn(key.peer, job)) continue;
    const int peer = key.peer;
    if (table->step.is_summed()) continue;
    const Status late = overdue(job, now, [&] { return table->tell_turn(peer); });
    if (!late.ok()) refuse_step(*table, table->take_no_more(late));
    moved = moved || !late.ok();
  }
  for (auto& [number, table] : tables_) {
    if (table.in_step.empty() || table.step.is_summed()) continue;
    AskedOfTable& first = table.in_step.front();
    const Status late =
        overdue(first.job, now, [&, &each = table] { return each.tell_turn(first.peer); });
    if (late.ok()) continue;
    refuse_step(table, table.take_no_more(late));
    moved = true;
  }
  return moved;
}

void TableOwner::refuse_step(ServedTable& table, const Status& why) {
  for (AskedOfTable& asked : std::exchange(table.in_step, {})) {
    asked.job.status = why;
    answer(asked.peer, std::move(asked.job), 0);
  }
  table.step.restart();
}

Status TableOwner::overdue(TableJob& job, Time now,
                           const std::function<std::string()>& tell) const {
  const Duration waited = now - job.since;
  if (timeouts_.error > Duration() && waited >= timeouts_.error) {
    return {ErrorCode::stalled, tell()};
  }
  if (!job.is_told && timeouts_.warning > Duration() && waited >= timeouts_.warning) {
    job.is_told = true;
    log(LogLevel::warning, tell());
  }
  return {};
}

std::optional<Time> TableOwner::next_deadline() const {
  std::optional<Time> earliest = look_again_;
  const auto take = [&](const TableJob& job) {
    std::optional<Time> due;
    if (!job.is_told && timeouts_.warning > Duration()) {
      due = job.since + timeouts_.warning;
    } else if (timeouts_.error > Duration()) {
      due = job.since + timeouts_.error;
    }
    if (due) earliest = earliest ? std::min(*earliest, *due) : due;
  };
  for (const AskedOfTable& each : deferred_) take(each.job);
  for (const auto& [key, queue] : queues_) {
    if (!queue.front().is_admitted) take(queue.front());
  }
  for (const auto& [number, table] : tables_) {
    if (!table.in_step.empty()) take(table.in_step.front().job);
  }
  return earliest;
}

// --- Failures

void TableOwner::finish_begun(ServedTable& table, const Key& key, std::deque<TableJob>& queue) {
  if (queue.empty() || !queue.front().is_at_work) return;
  TableJob job = std::move(queue.front());
  queue.pop_front();
  if (!changes_values(job.request.verb)) {
    table.shard_of(job.request).release();
    return unstage(job);
  }
  while (!table.work(job)) continue;
  end(&table, key.peer, std::move(job));
}

// Answers to the lost rank are dropped, and payloads being sent to it end with their messages.
void TableOwner::lose(int rank) {
  for (auto queue = queues_.begin(); queue != queues_.end();) {
    if (queue->first.peer != rank) {
      ++queue;
      continue;
    }
    if (ServedTable* const table = find(queue->first.table)) {
      finish_begun(*table, queue->first, queue->second);
    }
    for (TableJob& job : queue->second) unstage(job);
    queue = queues_.erase(queue);
  }
  for (AskedOfTable& each : deferred_) {
    if (each.peer == rank) unstage(each.job);
  }
  deferred_.remove_if([rank](const AskedOfTable& each) { return each.peer == rank; });
  for (auto& [number, table] : tables_) {
    if (table.held.index_of(rank) < 0) continue;
    table.held.use->is_direct.store(false);
    table.finish(rank);
  }
}

// Leaves complete values, since what ranks hold may be read afterwards.
void TableOwner::fail_all() {
  for (auto& [key, queue] : queues_) {
    if (ServedTable* const table = find(key.table); table != nullptr && !queue.empty()) {
      TableJob& job = queue.front();
      while (job.is_at_work && changes_values(job.request.verb) && !table->work(job)) continue;
    }
  }
  for (auto& [number, table] : tables_) {
    while (table.step_done > 0) advance_step(table);
    table.held.use->is_direct.store(false);
    table.held.own->release();
    table.held.own->close_shared();
    if (table.held.replica) table.held.replica->release();
  }
  queues_.clear();
  deferred_.clear();
  replicating_.clear();
  departing_.clear();
  tables_.clear();
  staged_ = {};
}

}  // namespace rueda
