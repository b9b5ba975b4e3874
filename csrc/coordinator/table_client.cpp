#include "coordinator/table_client.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "core/strings.h"

namespace rueda {

void TableClient::submit(std::shared_ptr<TableOperation> operation) {
  auto underway = std::make_shared<Underway>();
  underway->left = operation->parts.size();
  underway->operation = std::move(operation);
  if (underway->left == 0) return underway->operation->handle->complete({});
  for (std::size_t part = 0; part < underway->operation->parts.size(); ++part) {
    const int owner = underway->operation->parts[part].owner;
    const std::uint64_t number = next_number_++;
    Pending pending{underway, part};
    if (at_once_[owner] >= requests_at_once) {
      waiting_[owner].emplace_back(number, std::move(pending));
      continue;
    }
    ++at_once_[owner];
    // Known before it is sent: this very rank may answer within post_().
    const auto placed = pending_.emplace(number, std::move(pending)).first;
    begin(number, placed->second);
  }
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
  request.begin = part.begin;
  request.count = part.count;
  request.payload_bytes = part.payload_bytes;
  request.is_inline = part.payload_bytes <= table_inline_bytes;
  if (!request.is_replica) request.seen = operation.use->seen[part.index].load();
  const std::span payload(part.payload, part.payload_bytes);
  if (!request.is_inline) {
    pending.sending = mail(messages_, true, part.owner, number, MailOf::request,
                           const_cast<std::byte*>(part.payload), part.payload_bytes);
  }
  const int owner = part.owner;  // the part may be over once this has been posted
  post_(owner, encode(request, request.is_inline ? payload : std::span<const std::byte>()));
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
  if (answer.is_inline || !answer.status.ok()) {
    take(pending, decoded->payload);
  } else {
    const TableOperation::Part& part = part_of(pending);
    const auto bytes = static_cast<std::size_t>(answer.payload_bytes);
    const bool lands =
        part.target != nullptr && bytes == static_cast<std::size_t>(part.count) * sizeof(float);
    if (!lands) pending.arrived.resize(bytes);
    std::byte* const target =
        lands ? reinterpret_cast<std::byte*>(part.target) : pending.arrived.data();
    pending.arriving = mail(messages_, false, peer, answer.number, MailOf::answer, target, bytes);
  }
  finish(answer.number);
  return true;
}

// Where what came belongs; an operation whose answer has another size than it must have fails.
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
  const auto bytes = static_cast<std::size_t>(part.count * operation.width) * sizeof(float);
  if (payload.size() != bytes) {
    answer.status = Status(ErrorCode::internal, str("rank ", part.owner, " answered with ",
                                                    payload.size(), " bytes, not ", bytes));
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

// Where all of it has come.
void TableClient::finish(std::uint64_t number) {
  const auto found = pending_.find(number);
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
      operation.use->seen[part.index].store(answer.version);
    } else if (operation.request.verb == TableVerb::add) {
      const auto staleness = std::min<std::uint64_t>(answer.staleness, TableUse::counted - 1);
      operation.use->staleness.at(staleness).fetch_add(1);
    }
  }
  const int owner = part.owner;
  const Pending ended = std::move(pending);
  pending_.erase(found);
  end_part(*ended.underway, ended.answer.status);
  auto waiting = waiting_.find(owner);
  if (waiting == waiting_.end()) {
    --at_once_[owner];
    return;
  }
  auto [next, next_pending] = std::move(waiting->second.front());
  waiting->second.pop_front();
  if (waiting->second.empty()) waiting_.erase(waiting);
  const auto placed = pending_.emplace(next, std::move(next_pending)).first;
  begin(next, placed->second);
}

void TableClient::end_part(Underway& underway, const Status& status) {
  if (underway.status.ok()) underway.status = status;
  if (--underway.left == 0) underway.operation->handle->complete(underway.status);
}

bool TableClient::step() {
  std::vector<std::uint64_t> over;
  for (auto& [number, pending] : pending_) {
    const TableOperation::Part& part = part_of(pending);
    if (!pending.is_answered && has_left_(part.owner)) {
      pending.is_answered = true;
      pending.answer.status =
          Status(ErrorCode::shutdown,
                 str("rank ", part.owner, " has shut down, with its part of a table"), part.owner);
    }
    if (pending.is_answered) over.push_back(number);
  }
  const std::size_t before = pending_.size();
  for (const std::uint64_t number : over) finish(number);
  return pending_.size() != before;
}

// The mail of these parts has been failed: nobody touches their memory.
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
