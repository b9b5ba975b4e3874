#include "coordinator/served_table.h"

#include <algorithm>
#include <exception>

#include "core/strings.h"
#include "server/shard_function.h"

namespace rueda {

namespace {

// Elements processed at a time, so that other operations advance meanwhile.
constexpr std::int64_t piece_elements = 256 << 10;

}  // namespace

int HeldTable::index_of(int world_rank) const {
  const auto found = std::find(ranks.begin(), ranks.end(), world_rank);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

ServedTable::ServedTable(HeldTable table)
    : held(std::move(table)),
      clocks(held.ranks),
      step(held.ranks.size(), static_cast<std::size_t>(held.rank), held.own_count) {}

// --- Requests

Status ServedTable::check(int peer, const TableRequest& request) const {
  const auto invalid = [&](const auto&... why) {
    return Status(ErrorCode::invalid_argument, str("table '", held.name, "': ", why...));
  };
  if (held.index_of(peer) < 0) return invalid("rank ", peer, " is not one of its ranks");
  if (request.is_replica && held.replica == nullptr) {
    return invalid("this rank holds no replica");
  }
  const Shard& shard = shard_of(request);
  const bool rows = shard.has_rows();
  const auto count = static_cast<std::uint64_t>(request.count);
  const auto width = static_cast<std::uint64_t>(shard.width());
  constexpr std::uint64_t most = std::uint64_t{1}
                                 << 36;  // less than 2^62 bytes, even with the widest rows
  if (count > most) return invalid("too many items");
  std::uint64_t expected = rows ? count * sizeof(std::int64_t) : 0;
  const auto kept =
      static_cast<std::uint64_t>(request.verb == TableVerb::put_state ? shard.states() : 1);
  if (changes_values(request.verb)) expected += count * width * kept * sizeof(float);
  if (request.verb == TableVerb::tick) expected = 0;
  if (request.verb != TableVerb::call && request.payload_bytes != expected) {
    return invalid("a payload of ", request.payload_bytes, " bytes instead of ", expected);
  }
  if (is_step_part(request)) {
    if (request.count == held.own_count) return {};
    return invalid("in ring order, each addition must cover the whole table");
  }
  if (rows || request.verb == TableVerb::tick || request.verb == TableVerb::call) return {};
  return shard.check({request.begin, request.count, {}});
}

Status ServedTable::refusal_of_step(int peer, const TableRequest& request) const {
  if (!is_step_part(request)) return {};
  if (clocks.of(peer) != Clocks::finished) return broken;
  return {ErrorCode::invalid_argument, str("table '", held.name, "': rank ", peer,
                                           " has finished: in ring order it can add no more")};
}

bool ServedTable::waits_for_clock(const TableJob& job) const {
  return job.status.ok() && job.request.verb == TableVerb::get &&
         clocks.least() < job.request.min_clock;
}

bool ServedTable::waits_for_turn(int peer, const TableJob& job) const {
  if (!job.status.ok() || !is_step_part(job.request) || !broken.ok()) return false;
  return step.is_summed() || step.turn() != static_cast<std::size_t>(held.index_of(peer));
}

std::string ServedTable::tell_clock(const AskedOfTable& asked) const {
  const std::int64_t clock = asked.job.request.min_clock;
  const std::vector<int> behind = clocks.behind(clock);
  std::string done;
  for (const int rank : behind) done += str(done.empty() ? "" : ", ", clocks.of(rank));
  return str("table '", held.name, "': rank ", asked.peer, " waits for step ", clock, " of ",
             describe_ranks(behind), ", which ", behind.size() == 1 ? "has" : "have", " done ",
             done, ": a rank that does no more steps must call finish()");
}

std::string ServedTable::tell_turn(int peer) const {
  return str("table '", held.name, "': rank ", peer,
             " has added and waits, in ring order, for rank ", held.ranks[step.turn()],
             ", which has not: a rank that does no more steps must call finish()");
}

// --- Work

Selection ServedTable::selection_of(const TableJob& job) const {
  Selection selection{job.request.begin, job.request.count, {}};
  if (shard_of(job.request).has_rows()) {
    // A vector's memory is aligned for any of these.
    selection.rows = {reinterpret_cast<const std::int64_t*>(job.payload.data()),
                      static_cast<std::size_t>(job.request.count)};
  }
  return selection;
}

void ServedTable::prepare(int peer, TableJob& job) {
  const Shard& shard = shard_of(job.request);
  const TableRequest& request = job.request;
  if (request.verb != TableVerb::tick && request.verb != TableVerb::call) {
    job.status = shard.check(selection_of(job));
    if (!job.status.ok()) return;
  }
  job.factor = request.factor;
  if (request.verb == TableVerb::add && !request.is_replica) {
    job.staleness = shard.version() - std::min(shard.version(), request.seen);
    if (request.by_staleness) job.factor /= static_cast<float>(1 + job.staleness);
  }
  if (is_step_part(request)) {
    if (!step.is_begun()) step_factor = job.factor;
    if (step_factor != job.factor) {
      step_error = Status(
          ErrorCode::mismatch,
          str("table '", held.name, "': rank ", peer, " adds with factor ", job.factor,
              ", others of the same step with ", step_factor,
              ": in ring order all must pass the same"),
          -1,
          {.tensor = held.name, .field = "factor", .values = {str(job.factor), str(step_factor)}});
    }
  }
}

std::size_t ServedTable::result_bytes(const TableRequest& request) const {
  if (request.verb != TableVerb::get) return 0;
  return static_cast<std::size_t>(request.count * shard_of(request).width()) * sizeof(float);
}

bool ServedTable::work(TableJob& job) {
  if (job.request.verb == TableVerb::call) {
    run_function(job);
  } else if (job.request.verb != TableVerb::tick && !work_on_values(job)) {
    return false;
  }
  Shard& shard = shard_of(job.request);
  if (job.request.verb == TableVerb::add && job.status.ok() && !is_step_part(job.request)) {
    shard.count_addition();
  }
  job.version = shard.version();
  shard.release();
  job.is_at_work = false;
  return true;
}

// Does the next piece.
bool ServedTable::work_on_values(TableJob& job) {
  Shard& shard = shard_of(job.request);
  const TableRequest& request = job.request;
  const Selection selection = selection_of(job);
  const std::int64_t piece = std::max<std::int64_t>(1, piece_elements / shard.width());
  if (changes_values(request.verb) && job.reserved < request.count) {
    const std::int64_t to = std::min(request.count, job.reserved + piece);
    job.status = shard.reserve(selection, job.reserved, to, job.places);
    job.reserved = to;
    if (!job.status.ok()) {
      job.status =
          Status(job.status.code(), str("table '", held.name, "': ", job.status.message()));
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
  } else if (is_step_part(request)) {
    step.add(values, job.done, to);
  } else {
    shard.add(selection, job.places, job.done, to, values, job.factor);
  }
  job.done = to;
  return job.done == request.count;
}

void ServedTable::run_function(TableJob& job) const {
  const ShardFunction* const function = find_shard_function(job.request.function);
  const int owner = held.ranks[static_cast<std::size_t>(held.rank)];
  const auto failed = [&](const auto& why) {
    job.status = Status(ErrorCode::invalid_argument,
                        str("table '", held.name, "': the function '", job.request.function,
                            "' failed at its owner, rank ", owner, ": ", why));
  };
  if (function == nullptr) {
    job.status = Status(ErrorCode::invalid_argument,
                        str("table '", held.name, "': rank ", owner, " has no shard function '",
                            job.request.function, "': register it on every rank"));
    return;
  }
  try {
    job.result = (*function)(*held.own, job.payload);
  } catch (const std::exception& error) {
    failed(error.what());
  } catch (...) {
    failed("it threw something other than a std::exception");
  }
}

void ServedTable::count_clock(int peer, const TableRequest& request) {
  if (request.is_replica) return;
  if (request.finishes) {
    clocks.finish(peer);
  } else if (request.restarts) {
    clocks.restart(peer, request.min_clock);
  } else if (request.ticks || request.verb == TableVerb::tick) {
    clocks.tick(peer);
  }
  const auto index = static_cast<std::size_t>(held.index_of(peer));
  held.use->clocks[index].store(clocks.of(peer));
  held.own->tell_least_clock(clocks.least());
}

void ServedTable::finish(int rank) {
  clocks.finish(rank);
  held.own->tell_least_clock(clocks.least());
}

Status ServedTable::take_no_more(const Status& why) {
  broken = Status(why.code(), str(why.message(), "; the table takes no more additions"));
  return broken;
}

bool ServedTable::work_on_step() {
  Shard& shard = *held.own;
  const std::int64_t to = std::min(held.own_count, step_done + piece_elements);
  const auto begin = in_step.front().job.request.begin;
  shard.add({begin, held.own_count, {}}, {}, step_done, to, step.sum().data(), step_factor);
  step_done = to;
  if (to < held.own_count) return false;
  step_done = 0;
  shard.count_addition();
  shard.release();
  return true;
}

}  // namespace rueda
