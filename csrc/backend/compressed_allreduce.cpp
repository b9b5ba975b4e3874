#include "backend/compressed_allreduce.h"

#include <algorithm>
#include <utility>

#include "backend/compressed_faults.h"
#include "core/strings.h"
#include "reduce/kernels/block_format.h"
#include "reduce/reduce.h"

namespace rueda {

namespace {

// Whole blocks, so that only the end of a rank's part of a tensor has an incomplete block.
std::int64_t chunk_elements(const Lane& lane) {
  const std::int64_t elements = lane.codec_chunk_bytes / static_cast<std::int64_t>(sizeof(float));
  return std::clamp(elements / block_elements * block_elements, block_elements, max_run);
}

}  // namespace

CompressedAllreduce::CompressedAllreduce(const Lane& lane, const Reduction& reduction,
                                         std::vector<Piece> pieces, ReportFault report)
    : lane_(lane),
      tensors_(reduction, std::move(pieces), lane, chunk_elements(lane), std::move(report)) {
  const bool tells_sizes = !tensors_.codec().has_fixed_size();
  for (int distance = 1; distance < lane_.size(); ++distance) {
    const int rank = (lane_.rank + distance) % lane_.size();
    peers_.push_back(
        {rank, CompressedOutbox(lane_, rank, tells_sizes),
         CompressedInbox(lane_, rank, tells_sizes, messages_between(tensors_, rank, lane_.rank))});
  }
  const auto longest = static_cast<std::size_t>(layout().longest());
  sum_.resize(longest);
  own_.resize(longest);
}

bool CompressedAllreduce::advance() {
  if (done_) return false;
  const bool moved = move_messages();
  if (done_) return true;
  // What other ranks wait for comes first.
  const bool worked = reduce_own_chunk() || send_next() || take_a_result();
  if (!done_ && is_over()) done_ = true;
  return moved || worked || done_;
}

bool CompressedAllreduce::move_messages() {
  bool moved = false;
  for (Peer& peer : peers_) {
    moved = peer.inbox.advance() || moved;
    moved = peer.outbox.advance() || moved;
    if (!peer.inbox.status().ok()) fail(peer.inbox.status());
    if (!peer.outbox.status().ok()) fail(peer.outbox.status());
  }
  return moved;
}

bool CompressedAllreduce::reduce_own_chunk() {
  if (reduced_ == layout().chunks()) return false;
  const CompressedChunk chunk = layout().chunk(lane_.rank, reduced_);
  if (chunk.count == 0) {
    results_.push_back({});
    ++reduced_;
    return true;
  }
  const auto has_contributed = [](const Peer& peer) {
    return peer.inbox.has_arrived(ChunkKind::contribution);
  };
  // Not ahead of time, so that results do not pile up.
  if (reduced_ > time_ || !std::all_of(peers_.begin(), peers_.end(), has_contributed)) return false;
  for (int rank = 0; rank < lane_.size() && !done_; ++rank) add_contribution(rank, chunk);
  if (done_) return true;
  const std::size_t room = tensors_.result_bytes(chunk);
  Result result{buffers_.take(room)};
  result.bytes = tensors_.encode_result(chunk, sum_.data(), result.chunk->data());
  if (!tensors_.take_result(chunk, {result.chunk->data(), result.bytes})) {
    fail_malformed(lane_.rank);
  }
  results_.push_back(std::move(result));
  ++reduced_;
  return true;
}

// Called in rank order; the first contribution initialises the sum.
void CompressedAllreduce::add_contribution(int rank, const CompressedChunk& chunk) {
  const auto add = [&](ConstBytes bytes) {
    return tensors_.add_to_sum(chunk, rank, bytes, sum_.data());
  };
  bool is_right = true;
  if (rank != lane_.rank) {
    const int distance = (rank - lane_.rank + lane_.size()) % lane_.size();
    CompressedInbox& inbox = peers_[static_cast<std::size_t>(distance) - 1].inbox;
    is_right = add(inbox.front(ChunkKind::contribution));
    inbox.pop(ChunkKind::contribution);
  } else if (tensors_.codec().encodes_own()) {
    const EncodedChunk own = buffers_.take(tensors_.contribution_bytes(chunk));
    const std::size_t bytes = tensors_.encode(chunk, own->data());
    is_right = add({own->data(), bytes});
  } else if (rank == 0) {
    tensors_.copy_own(chunk, sum_.data());
  } else {
    tensors_.copy_own(chunk, own_.data());
    reduce(sum_.data(), own_.data(), chunk.count, DataType::float32, ReduceOp::sum);
  }
  if (!is_right) fail_malformed(rank);
  lane_.counters->bytes_reduced.add(chunk.count * static_cast<std::int64_t>(sizeof(float)));
}

bool CompressedAllreduce::take_a_result() {
  for (Peer& peer : peers_) {
    if (peer.results_taken == layout().chunks()) continue;
    const CompressedChunk chunk = layout().chunk(peer.rank, peer.results_taken);
    if (chunk.count > 0) {
      if (!peer.inbox.has_arrived(ChunkKind::result)) continue;
      if (!tensors_.take_result(chunk, peer.inbox.front(ChunkKind::result))) {
        fail_malformed(peer.rank);
      }
      peer.inbox.pop(ChunkKind::result);
    }
    ++peer.results_taken;
    return true;
  }
  return false;
}

bool CompressedAllreduce::send_next() {
  if (time_ == layout().chunks() + result_lag) return false;
  if (time_ < layout().chunks() && served_ < peers_.size()) {
    if (!send_contribution(peers_[served_])) return false;
    ++served_;
    return true;
  }
  if (time_ >= result_lag && !send_result()) return false;
  ++time_;
  served_ = 0;
  return true;
}

bool CompressedAllreduce::send_contribution(Peer& peer) {
  const CompressedChunk chunk = layout().chunk(peer.rank, time_);
  if (chunk.count == 0) return true;
  if (peer.outbox.is_full()) return false;
  EncodedChunk encoded = buffers_.take(tensors_.contribution_bytes(chunk));
  const std::size_t bytes = tensors_.encode(chunk, encoded->data());
  peer.outbox.send(std::move(encoded), bytes);
  return true;
}

bool CompressedAllreduce::send_result() {
  if (results_.empty()) return false;  // not reduced yet
  const auto is_full = [](const Peer& peer) { return peer.outbox.is_full(); };
  if (std::any_of(peers_.begin(), peers_.end(), is_full)) return false;
  const Result result = std::move(results_.front());
  results_.pop_front();
  if (!result.chunk) return true;
  for (Peer& peer : peers_) peer.outbox.send(result.chunk, result.bytes);
  return true;
}

bool CompressedAllreduce::is_over() const {
  const auto is_served = [this](const Peer& peer) {
    return peer.results_taken == layout().chunks() && peer.inbox.is_done() &&
           peer.outbox.is_empty();
  };
  const bool has_sent_all = layout().chunks() == 0 || time_ == layout().chunks() + result_lag;
  return has_sent_all && reduced_ == layout().chunks() &&
         std::all_of(peers_.begin(), peers_.end(), is_served);
}

std::vector<int> CompressedAllreduce::awaited() const {
  std::vector<int> ranks;
  for (const Peer& peer : peers_) {
    if (!peer.inbox.is_done() || !peer.outbox.is_empty()) {
      ranks.push_back(lane_.world_rank(peer.rank));
    }
  }
  return ranks;
}

void CompressedAllreduce::fail(const Status& status) {
  if (status_.ok()) status_ = status;
  done_ = true;
}

void CompressedAllreduce::fail_malformed(int rank) {
  const int peer = lane_.world_rank(rank);
  fail(
      Status(ErrorCode::transport, str("rank ", peer, " sent a malformed compressed chunk"), peer));
}

std::unique_ptr<Operation> compressed_allreduce(const Lane& lane, const Reduction& reduction,
                                                std::vector<Piece> pieces) {
  const auto faults = std::make_shared<CompressedFaults>(pieces.size(), lane);
  const auto report = [faults](std::size_t piece, int rank) {
    if (rank == all_ranks) return faults->found_in_result(piece);
    faults->found_in_contribution(piece, rank);
  };
  const auto reduce = [=, pieces = std::move(pieces)] {
    return std::make_unique<CompressedAllreduce>(lane, reduction, pieces, report);
  };
  return compressed_operation(faults, reduction.compression.codec, {reduce});
}

}  // namespace rueda
