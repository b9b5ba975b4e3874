#include "coordinator/collective_at_once.h"

#include <algorithm>
#include <cstring>

#include "backend/eager.h"
#include "backend/lengths.h"
#include "coordinator/unfused_collective.h"

namespace rueda {

namespace {

bool is_reduction(Collective collective) {
  return collective == Collective::allreduce || collective == Collective::reduce_scatter;
}

// Whether the result has rows, whose number follows from its bytes.
bool brings_rows(Collective collective) {
  return collective == Collective::allgather || collective == Collective::reduce_scatter ||
         collective == Collective::alltoall;
}

}  // namespace

std::optional<CollectiveAtOnce> CollectiveAtOnce::of(const Response& agreed,
                                                     const ProcessSetMembers& members,
                                                     std::size_t room) {
  const Request& request = agreed.request;
  const bool brings = brings_rows(request.collective);
  const bool moves_data = brings || request.collective == Collective::allreduce ||
                          request.collective == Collective::broadcast;
  if (!moves_data || !request.group.empty() || request.priority != 0) return {};
  if (brings && request.row_bytes() == 0) return {};
  return CollectiveAtOnce(agreed, members, room);
}

CollectiveAtOnce::CollectiveAtOnce(const Response& agreed, const ProcessSetMembers& members,
                                   std::size_t room)
    : agreed_(&agreed),
      rank_(members.rank),
      size_(members.size()),
      room_(room),
      shape_(agreed.request.shape) {
  const Request& request = agreed.request;
  const auto own = static_cast<std::size_t>(rank_);
  contributed_ = result_ = input_ = request.bytes();
  if (is_reduction(request.collective)) {
    const int divisor = request.op == ReduceOp::average ? members.size() : 1;
    combine_.emplace(Combination{.dtype = request.dtype,
                                 .op = request.op,
                                 .prescale = request.prescale,
                                 .divisor = divisor,
                                 .postscale = request.postscale});
  }
  if (request.collective == Collective::broadcast) {
    root_ = members.world_rank(request.root);
    if (rank_ != request.root) contributed_ = 0;
  } else if (request.collective == Collective::allgather) {
    for (const std::int64_t rows : agreed.first_extents) {
      lengths_.push_back(rows * static_cast<std::int64_t>(request.row_bytes()));
    }
    shape_.front() = agreed.first_extents[own];
    contributed_ = input_ = static_cast<std::size_t>(lengths_[own]);
    result_ = static_cast<std::size_t>(sum(lengths_));
  } else if (request.collective == Collective::reduce_scatter) {
    const auto element = size_of(request.dtype);
    const auto row = static_cast<std::int64_t>(request.row_bytes() / element);
    for (const std::int64_t rows : rows_per_rank(request, members.size())) {
      lengths_.push_back(rows * row);
    }
    before_ = static_cast<std::size_t>(sum(lengths_, rank_)) * element;
    result_ = static_cast<std::size_t>(lengths_[own]) * element;
  }
}

bool CollectiveAtOnce::fits(const RepeatedCall& call) const {
  const Request& request = agreed();
  if (request.collective != call.collective || request.dtype != call.dtype) return false;
  if (call.collective == Collective::alltoall) return fits_alltoall(call);
  const auto is_there = [](const std::byte* memory, std::size_t bytes) {
    return bytes == 0 || memory != nullptr;
  };
  return request.op == call.op && request.prescale == call.prescale &&
         request.postscale == call.postscale && root_ == call.root &&
         std::equal(shape_.begin(), shape_.end(), call.shape.begin(), call.shape.end()) &&
         std::equal(request.splits.begin(), request.splits.end(), call.splits.begin(),
                    call.splits.end()) &&
         (lengths_.empty() || call.output_bytes == result_) && is_there(call.input, contributed_) &&
         is_there(call.output, result_);
}

std::size_t CollectiveAtOnce::input_bytes(const RepeatedCall& call) const {
  if (call.collective != Collective::alltoall) return input_;
  return static_cast<std::size_t>(call.shape.front()) * agreed().row_bytes();
}

bool CollectiveAtOnce::fits_alltoall(const RepeatedCall& call) const {
  if (call.shape.size() != shape_.size() || call.input == nullptr || call.output == nullptr) {
    return false;
  }
  const std::int64_t rows = call.shape.front();
  if (!std::equal(shape_.begin() + 1, shape_.end(), call.shape.begin() + 1)) return false;
  // Compares numbers of rows, since multiplying too many would overflow.
  const auto most = static_cast<std::int64_t>(room_ / agreed().row_bytes());
  if (rows < 0 || rows > most || !EagerRows::fit(size_, input_bytes(call), room_)) return false;
  if (call.splits.empty()) return rows % size_ == 0;
  std::int64_t left = rows;
  for (const std::int64_t split : call.splits) {
    if (split < 0 || split > left) return false;
    left -= split;
  }
  return left == 0 && call.splits.size() == static_cast<std::size_t>(size_);
}

std::size_t CollectiveAtOnce::contributed(const RepeatedCall& call) const {
  if (call.collective != Collective::alltoall) return contributed_;
  return EagerRows::bytes(size_) + input_bytes(call);
}

void CollectiveAtOnce::contribute(const RepeatedCall& call, std::byte* target) const {
  std::size_t bytes = contributed_;
  if (call.collective == Collective::alltoall) {
    target = EagerRows::put(rows_of(call), target);
    bytes = input_bytes(call);
  }
  if (bytes > 0) std::memcpy(target, call.input, bytes);
}

bool CollectiveAtOnce::finish_alltoall(const RepeatedCall& call,
                                       std::span<const std::byte* const> sent) const {
  const std::size_t row_bytes = agreed().row_bytes();
  std::vector<std::int64_t>& received = *call.received;
  received.resize(sent.size());
  std::size_t bytes = 0;
  for (std::size_t rank = 0; rank < sent.size(); ++rank) {
    received[rank] = EagerRows(sent[rank], size_).count_for(rank_);
    bytes += static_cast<std::size_t>(received[rank]) * row_bytes;
  }
  if (bytes != call.output_bytes) return false;
  std::byte* target = call.output;
  for (std::size_t rank = 0; rank < sent.size(); ++rank) {
    const std::size_t part = static_cast<std::size_t>(received[rank]) * row_bytes;
    const std::byte* const rows = EagerRows(sent[rank], size_).rows_for(rank_, row_bytes);
    if (part > 0) std::memcpy(target, rows, part);
    target += part;
  }
  return true;
}

bool CollectiveAtOnce::finish(const RepeatedCall& call, std::span<const std::byte*> sent) const {
  const auto own = static_cast<std::size_t>(rank_);
  const auto take = [&](std::byte* target, std::size_t rank, std::size_t bytes) {
    if (bytes > 0) std::memcpy(target, sent[rank], bytes);
  };
  switch (call.collective) {
    case Collective::alltoall: return finish_alltoall(call, sent);
    case Collective::allreduce:
    case Collective::reduce_scatter: {
      const auto count = static_cast<std::int64_t>(result_ / size_of(call.dtype));
      if (count == 0) return true;
      sent[own] = call.input;
      for (const std::byte*& each : sent) each += before_;
      (*combine_)({&call.output, 1}, sent, count, Stores::cached);
      return true;
    }
    case Collective::broadcast:
      if (rank_ != agreed().root) {
        take(call.output, static_cast<std::size_t>(agreed().root), result_);
      }
      return true;
    default: break;
  }
  std::byte* target = call.output;
  for (std::size_t rank = 0; rank < lengths_.size(); ++rank) {
    const auto bytes = static_cast<std::size_t>(lengths_[rank]);
    take(target, rank, bytes);
    target += bytes;
  }
  return true;
}

void CollectiveAtOnce::count(const RepeatedCall& call, Metrics& metrics) const {
  Metrics::PerCollective& counted = metrics.of(agreed().collective);
  counted.batches.add(1);
  counted.tensors.add(1);
  counted.tensor_bytes.add(static_cast<std::int64_t>(input_bytes(call)));
  const auto result = static_cast<std::int64_t>(result_);
  if (combine_) {
    counted.transfers.bytes_reduced.add(result);
  } else if (agreed().collective == Collective::alltoall) {
    const std::int64_t own = (*call.received)[static_cast<std::size_t>(rank_)] *
                             static_cast<std::int64_t>(agreed().row_bytes());
    counted.transfers.bytes_taken.add(static_cast<std::int64_t>(call.output_bytes) - own);
  } else if (agreed().collective == Collective::allgather) {
    counted.transfers.bytes_taken.add(result - static_cast<std::int64_t>(contributed_));
  } else if (rank_ != agreed().root) {
    counted.transfers.bytes_taken.add(result);
  }
}

Request CollectiveAtOnce::request_of(const RepeatedCall& call) const {
  Request request = agreed();
  request.shape = shape_;
  if (call.collective == Collective::alltoall) request.shape.front() = call.shape.front();
  request.output_bytes = call.output_bytes;
  return request;
}

std::vector<std::int64_t> CollectiveAtOnce::rows_of(const RepeatedCall& call) const {
  if (call.collective != Collective::alltoall) return {};
  if (!call.splits.empty()) return {call.splits.begin(), call.splits.end()};
  return std::vector<std::int64_t>(static_cast<std::size_t>(size_), call.shape.front() / size_);
}

}  // namespace rueda
