#include "transport/matching.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/strings.h"

namespace rueda {

Ticket finished_ticket(int peer, Status status) {
  return std::make_shared<Transfer>(Transfer{true, std::move(status), peer});
}

void finish(Transfer& transfer, Status status) {
  transfer.status = std::move(status);
  transfer.done = true;
}

Ticket Matching::recv(int peer, Tag tag, std::span<const MutableBytes> spans) {
  if (!failure(peer).ok()) return finished_ticket(peer, failure(peer));
  auto ticket = std::make_shared<Transfer>(Transfer{false, {}, peer});
  Posted posted{SpanCursor<std::byte>(spans), ticket};
  const auto found = queues_.try_emplace({peer, tag}).first;
  Queue& queue = found->second;
  if (queue.unexpected.empty()) {
    queue.posted.push_back(std::move(posted));
    return ticket;
  }
  const auto arrival = std::move(queue.unexpected.front());
  queue.unexpected.pop_front();
  if (queue.unexpected.empty()) queues_.erase(found);
  match(*arrival, std::move(posted));
  return ticket;
}

void Matching::begin(int peer, Tag tag, std::size_t length) {
  auto arrival = std::make_shared<Arrival>();
  arrival->peer = peer;
  arrival->tag = tag;
  arrival->length = length;
  if (length > 0) current_[static_cast<std::size_t>(peer)] = arrival;
  const auto found = queues_.try_emplace({peer, tag}).first;
  Queue& queue = found->second;
  if (queue.posted.empty()) {
    arrival->kept = std::make_unique_for_overwrite<std::byte[]>(length);
    queue.unexpected.push_back(std::move(arrival));
    return;
  }
  Posted posted = std::move(queue.posted.front());
  queue.posted.pop_front();
  if (queue.posted.empty()) queues_.erase(found);
  match(*arrival, std::move(posted));
}

void Matching::append(int peer, ConstBytes piece) {
  auto& current = current_[static_cast<std::size_t>(peer)];
  Arrival& arrival = *current;
  if (arrival.ticket) {
    copy_into(arrival.target, piece);
  } else if (arrival.kept && !piece.empty()) {
    std::memcpy(arrival.kept.get() + arrival.arrived, piece.data(), piece.size());
  }
  arrival.arrived += piece.size();
  if (arrival.arrived < arrival.length) return;
  finish_if_whole(arrival);
  current.reset();
}

std::size_t Matching::unread(int peer) const {
  const auto& current = current_[static_cast<std::size_t>(peer)];
  return current ? current->length - current->arrived : 0;
}

void Matching::match(Arrival& arrival, Posted posted) {
  const auto kept = std::move(arrival.kept);
  if (posted.target.remaining() != arrival.length) {
    // The message is read to its end, so that later ones can be, but its bytes are dropped.
    finish(*posted.ticket,
           Status(ErrorCode::transport,
                  str("rank ", arrival.peer, " sent ", arrival.length, " bytes of ",
                      describe(arrival.tag), ", but ", posted.target.remaining(), " were expected"),
                  arrival.peer));
    return;
  }
  arrival.target = std::move(posted.target);
  arrival.ticket = std::move(posted.ticket);
  copy_into(arrival.target, ConstBytes(kept.get(), arrival.arrived));
  finish_if_whole(arrival);
}

void Matching::finish_if_whole(Arrival& arrival) {
  if (arrival.ticket && arrival.arrived == arrival.length) finish(*arrival.ticket, {});
}

void Matching::fail(int peer, const Status& why) {
  Status& failure = failures_[static_cast<std::size_t>(peer)];
  if (!failure.ok()) return;
  failure = why;
  for (auto each = queues_.begin(); each != queues_.end();) {
    const bool concerned = each->first.peer == peer;
    if (concerned) {
      for (Posted& posted : each->second.posted) finish(*posted.ticket, why);
    }
    each = concerned ? queues_.erase(each) : std::next(each);
  }
  const auto current = std::move(current_[static_cast<std::size_t>(peer)]);
  if (current && current->ticket) finish(*current->ticket, why);
}

}  // namespace rueda
