#include "coordinator/collective_at_once.h"

#include <algorithm>
#include <cstring>

#include "backend/lengths.h"
#include "coordinator/unfused_collective.h"

namespace rueda {

namespace {

// Of which the ranks can send along all that is to be exchanged.
bool is_one(Collective collective) {
  return collective == Collective::allreduce || collective == Collective::allgather ||
         collective == Collective::broadcast || collective == Collective::reduce_scatter;
}

bool is_reduction(Collective collective) {
  return collective == Collective::allreduce || collective == Collective::reduce_scatter;
}

}  // namespace

std::optional<CollectiveAtOnce> CollectiveAtOnce::of(const Response& agreed,
                                                     const ProcessSetMembers& members) {
  const Request& request = agreed.request;
  if (!is_one(request.collective) || !request.group.empty() || request.priority != 0) return {};
  // The rows of a result are counted by its bytes.
  const bool has_rows = request.collective == Collective::allgather ||
                        request.collective == Collective::reduce_scatter;
  if (has_rows && request.row_bytes() == 0) return {};
  return CollectiveAtOnce(agreed, members);
}

CollectiveAtOnce::CollectiveAtOnce(const Response& agreed, const ProcessSetMembers& members)
    : agreed_(&agreed), rank_(members.rank), shape_(agreed.request.shape) {
  const Request& request = agreed.request;
  const auto own = static_cast<std::size_t>(rank_);
  contributed_ = result_ = request.bytes();
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
    contributed_ = static_cast<std::size_t>(lengths_[own]);
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
  const auto is_there = [](const std::byte* memory, std::size_t bytes) {
    return bytes == 0 || memory != nullptr;
  };
  return request.collective == call.collective && request.dtype == call.dtype &&
         request.op == call.op && request.prescale == call.prescale &&
         request.postscale == call.postscale && root_ == call.root &&
         std::equal(shape_.begin(), shape_.end(), call.shape.begin(), call.shape.end()) &&
         std::equal(request.splits.begin(), request.splits.end(), call.splits.begin(),
                    call.splits.end()) &&
         (lengths_.empty() || call.output_bytes == result_) && is_there(call.input, contributed_) &&
         is_there(call.output, result_);
}

void CollectiveAtOnce::finish(const RepeatedCall& call, std::span<const std::byte*> sent) const {
  const auto own = static_cast<std::size_t>(rank_);
  const auto take = [&](std::byte* target, std::size_t rank, std::size_t bytes) {
    if (bytes > 0) std::memcpy(target, sent[rank], bytes);
  };
  switch (call.collective) {
    case Collective::allreduce:
    case Collective::reduce_scatter: {
      const auto count = static_cast<std::int64_t>(result_ / size_of(call.dtype));
      if (count == 0) return;
      sent[own] = call.input;
      for (const std::byte*& each : sent) each += before_;
      return (*combine_)({&call.output, 1}, sent, count, Stores::cached);
    }
    case Collective::broadcast:
      if (rank_ != agreed().root) {
        take(call.output, static_cast<std::size_t>(agreed().root), result_);
      }
      return;
    default: break;
  }
  std::byte* target = call.output;
  for (std::size_t rank = 0; rank < lengths_.size(); ++rank) {
    const auto bytes = static_cast<std::size_t>(lengths_[rank]);
    take(target, rank, bytes);
    target += bytes;
  }
}

void CollectiveAtOnce::count_in(Metrics& metrics) const {
  Metrics::PerCollective& counted = metrics.of(agreed().collective);
  counted.batches.add(1);
  counted.tensors.add(1);
  counted.tensor_bytes.add(element_count(shape_) *
                           static_cast<std::int64_t>(size_of(agreed().dtype)));
  const auto result = static_cast<std::int64_t>(result_);
  if (combine_) {
    counted.transfers.bytes_reduced.add(result);
  } else if (agreed().collective == Collective::allgather) {
    counted.transfers.bytes_taken.add(result - static_cast<std::int64_t>(contributed_));
  } else if (rank_ != agreed().root) {
    counted.transfers.bytes_taken.add(result);
  }
}

Request CollectiveAtOnce::request_of(const RepeatedCall& call) const {
  Request request = agreed();
  request.shape = shape_;
  request.output_bytes = call.output_bytes;
  return request;
}

}  // namespace rueda
