#include "coordinator/table_client.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "core/log.h"
#include "core/strings.h"

namespace rueda {

namespace {

std::size_t expected_bytes(const TableOperation& operation, const TableOperation::Part& part) {
  if (operation.request.verb != TableVerb::get) return 0;
  return static_cast<std::size_t>(part.count * operation.width) * sizeof(float);
}

Status malformed(const TableOperation::Part& part, std::size_t bytes, std::size_t expected) {
  return {ErrorCode::internal,
          str("rank ", part.owner, " answered with ", bytes, " bytes, not ", expected)};
}

}  // namespace

void TableClient::submit(std::shared_ptr<TableOperation> operation) {
  auto underway = std::make_shared<Underway>();
  underway->left = operation->parts.size();
  underway->operation = std::move(operation);
  if (underway->left == 0) return underway->operation->end({});
  for (std::size_t part = 0; part < underway->operation->parts.size(); ++part) {
    const int owner = underway->operation->parts[part].owner;
    const std::uint64_t number = next_number_++;
    Pending pending{underway, part};
    const bool waits = !is_of_replica(pending) && at_once_[owner] >= requests_at_once;
    if (waits) {
      waiting_[owner].emplace_back(number, std::move(pending));
    } else {
      start(number, std::move(pending));
    }
  }
}

// Registered before it is sent.
void TableClient::start(std::uint64_t number, Pending pending) {
  if (counts(pending)) ++at_once_[part_of(pending).owner];
  pending.since = Clock::now();
  const auto placed = pending_.emplace(number, std::move(pending)).first;
  begin(number, placed->second);
}

void TableClient::replicate(int holder, TableRequest request, std::span<const std::byte> payload,
                            std::shared_ptr<HandleState> handle,
                            const std::shared_ptr<TableUse>& use) {
  auto operation = std::make_shared<TableOperation>();
  operation->use = use;
  operation->parts.push_back({.owner = holder,
                              .begin = request.begin,
                              .count = request.count,
                              .payload = payload.data(),
                              .payload_bytes = payload.size()});
  operation->request = std::move(request);
  operation->handle = std::move(handle);
  submit(std::move(operation));
}

void TableClient::begin(std::uint64_t number, Pending& pending) {
  const TableOperation& operation = *pending.underway->operation;
  const TableOperation::Part& part = part_of(pending);
  TableRequest request = operation.request;
  request.table = operation.use->number;
  request.number = number;
  if (part.only_ticks) request.verb = TableVerb::tick;
  request.begin = part.begin;
  request.count = part.count;
  request.payload_bytes = part.payload_bytes;
  request.is_inline = part.payload_bytes <= table_inline_bytes;
  if (!request.is_replica) request.seen = operation.use->seen[part.index].load();
  const std::span payload(part.payload, part.payload_bytes);
  if (!request.is_inline) {
    metrics_.table_bytes_sent.add(static_cast<std::int64_t>(part.payload_bytes));
    pending.sending = mail(messages_, true, part.owner, number, MailOf::request,
                           const_cast<std::byte*>(part.payload), part.payload_bytes);
  }
  metrics_.table_requests_sent.add(1);
  post_(part.owner, encode(request, request.is_inline ? payload : std::span<const std::byte>()));
}

bool TableClient::receive(int peer, std::span<const std::byte> message) {
  auto decoded = decode_table_answer(message);
  if (!decoded) return false;
  const auto found = pending_.find(decoded->message.number);
  if (found == pending_.end()) return true;  // it has failed meanwhile
  Pending& pending = found->second;
  if (part_of(pending).owner != peer || pending.is_answered) return false;
  pending.is_answered = true;
  pending.answer = std::move(decoded->message);
  const TableAnswer& answer = pending.answer;
  const TableOperation& operation = *pending.underway->operation;
  const TableOperation::Part& part = part_of(pending);
  const auto bytes = static_cast<std::size_t>(answer.payload_bytes);
  if (answer.is_inline || !answer.status.ok()) {
    take(pending, decoded->payload);
  } else if (!operation.results && bytes != expected_bytes(operation, part)) {
    pending.answer.status = malformed(part, bytes, expected_bytes(operation, part));
    refuse_mail(messages_, peer, answer.number, MailOf::answer);
  } else {
    const bool lands = part.target != nullptr;
    if (!lands) pending.answer.status = make_room(pending.arrived, bytes);
    std::byte* const target =
        lands ? reinterpret_cast<std::byte*>(part.target) : pending.arrived.data();
    if (pending.answer.status.ok()) {
      pending.arriving = mail(messages_, false, peer, answer.number, MailOf::answer, target, bytes);
    } else {
      refuse_mail(messages_, peer, answer.number, MailOf::answer);
    }
  }
  finish(answer.number);
  return true;
}

// Puts the payload in its place; fails an operation whose answer has the wrong size.
void TableClient::take(Pending& pending, std::span<const std::byte> payload) {
  TableOperation& operation = *pending.underway->operation;
  TableOperation::Part& part = part_of(pending);
  TableAnswer& answer = pending.answer;
  if (!answer.status.ok()) return;
  if (operation.results) {
    (*operation.results)[part.index].assign(payload.begin(), payload.end());
    return;
  }
  if (operation.request.verb != TableVerb::get) return;
  const std::size_t bytes = expected_bytes(operation, part);
  if (payload.size() != bytes) {
    answer.status = malformed(part, payload.size(), bytes);
    return;
  }
  if (bytes == 0) return;
  if (part.positions.empty()) {
    std::memcpy(part.target, payload.data(), bytes);
    return;
  }
  const auto row_bytes = static_cast<std::size_t>(operation.width) * sizeof(float);
  for (std::size_t i = 0; i < part.positions.size(); ++i) {
    std::memcpy(operation.out + part.positions[i] * operation.width, payload.data() + i * row_bytes,
                row_bytes);
  }
}

// Completes the request if all of its answer has arrived.
void TableClient::finish(std::uint64_t number) {
  const auto found = pending_.find(number);
  if (found == pending_.end()) return;
  Pending& pending = found->second;
  if (!pending.is_answered || (pending.sending && !pending.sending->is_done()) ||
      (pending.arriving && !pending.arriving->is_done())) {
    return;
  }
  TableAnswer& answer = pending.answer;
  if (pending.arriving && answer.status.ok()) {
    answer.status = pending.arriving->status;
    if (!pending.arrived.empty()) take(pending, pending.arrived);
  }
  const TableOperation& operation = *pending.underway->operation;
  const TableOperation::Part& part = part_of(pending);
  if (answer.status.ok() && !operation.request.is_replica) {
    if (operation.request.verb == TableVerb::get) {
      if (part.count > 0) operation.use->seen[part.index].store(answer.version);
    } else if (operation.request.verb == TableVerb::add && !part.only_ticks) {
      operation.use->count_staleness(answer.staleness);
    }
  }
  const int owner = part.owner;
  const Pending ended = std::move(pending);
  pending_.erase(found);
  end_part(*ended.underway, ended.answer.status);
  if (!counts(ended)) return;
  --at_once_[owner];
  for (auto waiting = waiting_.find(owner);
       waiting != waiting_.end() && at_once_[owner] < requests_at_once;
       waiting = waiting_.find(owner)) {
    auto [next, next_pending] = std::move(waiting->second.front());
    waiting->second.pop_front();
    if (waiting->second.empty()) waiting_.erase(waiting);
    start(next, std::move(next_pending));
  }
}

void TableClient::end_part(Underway& underway, const Status& status) {
  if (underway.status.ok()) underway.status = status;
  if (--underway.left == 0) underway.operation->end(underway.status);
}

bool TableClient::step(Time now) {
  std::vector<std::uint64_t> over;
  for (auto& [number, pending] : pending_) {
    const TableOperation::Part& part = part_of(pending);
    const std::string& table = pending.underway->operation->use->name;
    if (!pending.is_answered && has_left_(part.owner)) {
      pending.is_answered = true;
      pending.answer.status = Status(
          ErrorCode::shutdown,
          str("rank ", part.owner, " has left, with its part of table '", table, "'"), part.owner);
    }
    if (pending.is_answered) over.push_back(number);
    if (!is_due(pending)) continue;
    if (now - pending.since >= timeouts_.warning) {
      pending.is_told = true;
      log(LogLevel::warning, "table '", table, "': rank ", part.owner, " has not answered for ",
          std::chrono::duration_cast<std::chrono::seconds>(now - pending.since).count(), " s");
    }
  }
  const std::size_t before = pending_.size();
  for (const std::uint64_t number : over) finish(number);
  return pending_.size() != before;
}

// The owner warns of waits for a clock.
bool TableClient::is_due(const Pending& pending) const {
  return !pending.is_told && timeouts_.warning > Duration() &&
         !pending.underway->operation->waits_for_clock();
}

std::optional<Time> TableClient::next_deadline() const {
  std::optional<Time> earliest;
  for (const auto& [number, pending] : pending_) {
    if (!is_due(pending)) continue;
    const Time due = pending.since + timeouts_.warning;
    earliest = earliest ? std::min(*earliest, due) : due;
  }
  return earliest;
}

// The messages of these parts have been failed: nobody accesses their memory.
void TableClient::lose(int rank, const Status& reason) {
  for (auto each = pending_.begin(); each != pending_.end();) {
    if (part_of(each->second).owner != rank) {
      ++each;
      continue;
    }
    end_part(*each->second.underway, reason);
    each = pending_.erase(each);
  }
  at_once_.erase(rank);
  const auto waiting = waiting_.extract(rank);
  if (waiting.empty()) return;
  for (const auto& each : waiting.mapped()) end_part(*each.second.underway, reason);
}

void TableClient::fail_all(const Status& reason) {
  for (const auto& each : std::exchange(pending_, {})) end_part(*each.second.underway, reason);
  for (const auto& [owner, waiting] : std::exchange(waiting_, {})) {
    for (const auto& each : waiting) end_part(*each.second.underway, reason);
  }
  at_once_.clear();
}

}  // namespace rueda
