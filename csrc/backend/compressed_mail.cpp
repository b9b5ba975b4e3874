#include "backend/compressed_mail.h"

#include <utility>

#include "core/strings.h"

namespace rueda {

std::vector<ChunkMessage> messages_between(const CompressedTensors& tensors, int from, int to) {
  const CompressedLayout& layout = tensors.layout();
  std::vector<ChunkMessage> messages;
  for (std::int64_t time = 0; time < layout.chunks() + result_lag; ++time) {
    if (time < layout.chunks()) {
      const CompressedChunk chunk = layout.chunk(to, time);
      if (chunk.count > 0) {
        messages.push_back({ChunkKind::contribution, tensors.contribution_bytes(chunk)});
      }
    }
    if (time >= result_lag) {
      const CompressedChunk chunk = layout.chunk(from, time - result_lag);
      if (chunk.count > 0) messages.push_back({ChunkKind::result, tensors.result_bytes(chunk)});
    }
  }
  return messages;
}

EncodedChunk ChunkBuffers::take(std::size_t bytes) {
  for (EncodedChunk& buffer : buffers_) {
    if (buffer.use_count() > 1) continue;
    if (buffer->size() < bytes) buffer->resize(bytes);
    return buffer;
  }
  buffers_.push_back(std::make_shared<std::vector<std::byte>>(bytes));
  return buffers_.back();
}

void CompressedOutbox::send(EncodedChunk chunk, std::size_t bytes) {
  Sent sent;
  const int peer = lane_.world_rank(rank_);
  if (tells_sizes_) {
    sent.size = std::make_unique<ChunkSize>(static_cast<ChunkSize>(bytes));
    const ConstBytes size = std::as_bytes(std::span(sent.size.get(), 1));
    sent.size_ticket = lane_.transport->send(peer, lane_.tag, {&size, 1});
  }
  const ConstBytes content(chunk->data(), bytes);
  sent.ticket = lane_.transport->send(peer, lane_.tag, {&content, 1});
  sent.chunk = std::move(chunk);
  sent_.push_back(std::move(sent));
  lane_.counters->messages_sent.add(1);
  lane_.counters->payload_bytes_sent.add(static_cast<std::int64_t>(bytes));
}

bool CompressedOutbox::advance() {
  bool moved = false;
  for (; !sent_.empty() && sent_.front().is_done(); sent_.pop_front()) {
    moved = true;
    for (const Ticket& ticket : {sent_.front().size_ticket, sent_.front().ticket}) {
      if (ticket && !ticket->status.ok()) status_ = ticket->status;
    }
  }
  return moved;
}

Ticket CompressedInbox::receive(MutableBytes target) {
  return lane_.transport->recv(lane_.world_rank(rank_), lane_.tag, {&target, 1});
}

bool CompressedInbox::advance() {
  bool moved = false;
  while (status_.ok() && post_next()) moved = true;
  for (auto& arrivals : arrivals_) {
    for (Arrival& arrival : arrivals) moved = look(arrival) || moved;
  }
  return moved;
}

// A message's size precedes it, so it must arrive before the receive is posted.
bool CompressedInbox::await_size(std::size_t max_bytes) {
  if (!size_ticket_) {
    size_ticket_ = receive(std::as_writable_bytes(std::span(&size_, 1)));
  }
  if (!size_ticket_->done) return false;
  status_ = std::exchange(size_ticket_, nullptr)->status;
  if (status_.ok() && size_ > max_bytes) {
    const int peer = lane_.world_rank(rank_);
    status_ = Status(ErrorCode::transport,
                     str("rank ", peer, " announces ", size_,
                         " bytes for a compressed chunk of at most ", max_bytes),
                     peer);
  }
  return status_.ok();
}

bool CompressedInbox::post_next() {
  if (posted_ == messages_.size()) return false;
  const ChunkMessage& message = messages_[posted_];
  if (arrivals(message.kind).size() >= mail_window) return false;
  if (tells_sizes_ && !await_size(message.max_bytes)) return false;
  const std::size_t bytes = tells_sizes_ ? size_ : message.max_bytes;
  EncodedChunk chunk = buffers_.take(message.max_bytes);
  Ticket ticket = receive({chunk->data(), bytes});
  arrivals(message.kind).push_back({std::move(chunk), bytes, std::move(ticket)});
  ++posted_;
  return true;
}

bool CompressedInbox::look(Arrival& arrival) {
  if (arrival.is_counted || !arrival.ticket->done) return false;
  arrival.is_counted = true;
  if (!arrival.ticket->status.ok()) status_ = arrival.ticket->status;
  lane_.counters->payload_bytes_received.add(static_cast<std::int64_t>(arrival.bytes));
  return true;
}

bool CompressedInbox::is_done() const {
  return posted_ == messages_.size() && arrivals_[0].empty() && arrivals_[1].empty();
}

bool CompressedInbox::has_arrived(ChunkKind kind) const {
  return !arrivals(kind).empty() && arrivals(kind).front().ticket->done;
}

ConstBytes CompressedInbox::front(ChunkKind kind) const {
  const Arrival& arrival = arrivals(kind).front();
  return {arrival.chunk->data(), arrival.bytes};
}

void CompressedInbox::pop(ChunkKind kind) {
  arrivals(kind).pop_front();
}

}  // namespace rueda
