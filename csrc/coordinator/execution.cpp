#include "coordinator/execution.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/strings.h"
#include "plan/fusion_plan.h"
#include "reduce/reduce.h"

namespace rueda {

namespace {

void copy_bytes(std::byte* target, const std::byte* source, std::size_t bytes) {
  if (bytes > 0 && target != source) std::memmove(target, source, bytes);
}

std::size_t row_bytes(const Request& request) {
  Shape row(request.shape.begin() + 1, request.shape.end());
  return static_cast<std::size_t>(element_count(row)) * size_of(request.dtype);
}

// How a reduce-scatter divides `rows`: as asked for, or as evenly as possible.
std::vector<std::int64_t> rows_per_rank(const Request& request, int ranks) {
  if (!request.splits.empty()) return request.splits;
  const std::int64_t rows = request.shape.front();
  std::vector<std::int64_t> split(static_cast<std::size_t>(ranks), rows / ranks);
  for (std::int64_t i = 0; i < rows % ranks; ++i) ++split[static_cast<std::size_t>(i)];
  return split;
}

}  // namespace

Execution::Execution(const ExecutionContext& context, const Lane& lane,
                     std::vector<BatchMember> members, Time now)
    : context_(context),
      lane_(lane),
      members_(std::move(members)),
      started_at_(now),
      packed_at_(now),
      last_moved_(now) {
  Metrics::PerCollective& counted = context_.metrics->of(request().collective);
  lane_.counters = &counted.transfers;
  counted.batches.add(1);
  for (const BatchMember& member : members_) {
    if (!member.submission) {
      context_.metrics->absent_filled.add(1);
      continue;
    }
    counted.tensors.add(1);
    counted.tensor_bytes.add(static_cast<std::int64_t>(member.submission->request.bytes()));
    const std::string& name = member.response.request.name;
    const Submission& submission = *member.submission;
    const Time taken_at = std::max(submission.taken_at, submission.submitted_at);
    context_.timeline->span(name, "QUEUE", submission.submitted_at, taken_at);
    context_.timeline->span(name, "NEGOTIATE", taken_at, std::max(now, taken_at));
  }
  if (members_.size() > 1) {
    context_.metrics->tensors_fused.add(static_cast<std::int64_t>(members_.size()));
  }
  try {
    start();
  } catch (const std::bad_alloc&) {
    status_ = Status(ErrorCode::internal, str("no memory for the ", describe()));
    done_ = true;
  }
  packed_at_ = Clock::now();
  record("PACK", started_at_, packed_at_);
  last_moved_ = packed_at_;
}

Execution::~Execution() {
  context_.buffers->give_back(std::move(scratch_));
}

void Execution::start() {
  switch (request().collective) {
    case Collective::allreduce: return start_allreduce();
    case Collective::reduce_scatter: return start_reduce_scatter();
    case Collective::allgather: return start_allgather();
    case Collective::broadcast: return start_broadcast();
    case Collective::alltoall: return start_alltoall();
    default:
      status_ = Status(ErrorCode::internal, "not a collective that moves data");
      done_ = true;
  }
}

Reduction Execution::reduction() const {
  const auto absent = static_cast<int>(members_.front().response.absent.size());
  return {request().dtype, request().op, lane_.size() - absent, request().postscale};
}

std::byte* Execution::scratch(std::size_t bytes) {
  scratch_ = context_.buffers->take(bytes);
  return scratch_.bytes.get();
}

std::byte* Execution::allocate_output(Shape shape) {
  const std::size_t bytes =
      static_cast<std::size_t>(element_count(shape)) * size_of(request().dtype);
  output_.shape = std::move(shape);
  output_.data = std::shared_ptr<std::byte[]>(allocate_aligned(bytes));
  return output_.data.get();
}

void Execution::pack(std::byte* target, const BatchMember& member) {
  const Request& wanted = member.response.request;
  if (!member.submission) {
    fill_identity(target, wanted.count(), wanted.dtype, wanted.op);
    return;
  }
  copy_bytes(target, member.submission->input, wanted.bytes());
  if (wanted.prescale != 1.0) scale(target, wanted.count(), wanted.dtype, wanted.prescale);
}

// A single tensor is reduced where it lies; several share a fusion buffer.
void Execution::start_allreduce() {
  std::vector<std::int64_t> counts;
  for (const BatchMember& member : members_) counts.push_back(member.response.request.count());
  const std::vector<std::int64_t> offsets = fused_offsets(counts);
  const std::size_t element = size_of(request().dtype);
  const bool in_place = members_.size() == 1 && members_.front().submission;
  std::byte* buffer = in_place ? members_.front().submission->output
                               : scratch(static_cast<std::size_t>(offsets.back()) * element);
  const auto place = [=](std::size_t i) {
    return buffer + static_cast<std::size_t>(offsets[i]) * element;
  };
  for (std::size_t i = 0; i < members_.size(); ++i) {
    pack(place(i), members_[i]);
    if (!in_place)
      context_.metrics->bytes_packed.add(counts[i] * static_cast<std::int64_t>(element));
  }
  if (!in_place) {
    unpack_ = [this, place] {
      for (std::size_t i = 0; i < members_.size(); ++i) {
        if (!members_[i].submission) continue;
        const std::size_t bytes = members_[i].response.request.bytes();
        copy_bytes(members_[i].submission->output, place(i), bytes);
        context_.metrics->bytes_packed.add(static_cast<std::int64_t>(bytes));
      }
    };
  }
  operation_ = context_.backend->allreduce(lane_, reduction(), buffer, offsets.back());
}

void Execution::start_reduce_scatter() {
  const std::vector<std::int64_t> rows = rows_per_rank(request(), lane_.size());
  const std::size_t row = row_bytes(request());
  std::vector<std::int64_t> lengths;
  for (const std::int64_t count : rows) {
    lengths.push_back(count * static_cast<std::int64_t>(row / size_of(request().dtype)));
  }
  std::byte* buffer = scratch(request().bytes());
  pack(buffer, members_.front());
  unpack_ = [this, buffer, rows, row] {
    const auto self = rows.begin() + lane_.rank;
    const std::int64_t before = std::accumulate(rows.begin(), self, std::int64_t{0});
    Shape shape = request().shape;
    shape.front() = *self;
    std::byte* result = allocate_output(std::move(shape));
    copy_bytes(result, buffer + static_cast<std::size_t>(before) * row,
               static_cast<std::size_t>(*self) * row);
  };
  operation_ = context_.backend->reduce_scatter(lane_, reduction(), buffer, std::move(lengths));
}

void Execution::start_allgather() {
  const std::vector<std::int64_t>& rows = members_.front().response.first_extents;
  const std::size_t row = row_bytes(request());
  std::vector<std::int64_t> lengths;
  for (const std::int64_t count : rows) lengths.push_back(count * static_cast<std::int64_t>(row));
  const auto self = lengths.begin() + lane_.rank;
  Shape shape = request().shape;
  shape.front() = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  std::byte* buffer = allocate_output(std::move(shape));
  if (members_.front().submission) {
    copy_bytes(buffer + std::accumulate(lengths.begin(), self, std::int64_t{0}),
               members_.front().submission->input, static_cast<std::size_t>(*self));
  }
  operation_ = context_.backend->allgather(lane_, buffer, std::move(lengths));
}

void Execution::start_broadcast() {
  const std::size_t bytes = request().bytes();
  std::byte* buffer =
      members_.front().submission ? members_.front().submission->output : scratch(bytes);
  operation_ =
      context_.backend->broadcast(lane_, buffer, static_cast<std::int64_t>(bytes), request().root);
}

void Execution::start_alltoall() {
  const Submission& submission = *members_.front().submission;
  AlltoallInput input{submission.input, submission.rows, row_bytes(submission.request)};
  auto allocate = [this](const std::vector<std::int64_t>& received) {
    Shape shape = members_.front().submission->request.shape;
    shape.front() = std::accumulate(received.begin(), received.end(), std::int64_t{0});
    output_.received_splits = received;
    return allocate_output(std::move(shape));
  };
  operation_ = context_.backend->alltoall(lane_, std::move(input), std::move(allocate));
}

bool Execution::advance(Time now) {
  if (done_) return false;
  bool moved = false;
  try {
    moved = operation_->advance();
    if (operation_->done() && operation_->status().ok()) {
      const Time gathered_at = Clock::now();
      if (unpack_) unpack_();
      record("RING", packed_at_, gathered_at);
      record("UNPACK", gathered_at, Clock::now());
    }
  } catch (const std::bad_alloc&) {
    status_ = Status(ErrorCode::internal, str("no memory for the ", describe()));
    done_ = true;
    return true;
  }
  if (moved) last_moved_ = now;
  if (!operation_->done()) return moved;
  done_ = true;
  status_ = operation_->status();
  if (status_.ok()) complete_handles();
  return true;
}

void Execution::complete_handles() {
  for (BatchMember& member : members_) {
    if (!member.submission) continue;
    context_.metrics->tensors_completed.add(1);
    member.submission->handle->complete({}, members_.size() == 1 ? std::move(output_) : Output{});
  }
}

void Execution::fail(const Status& reason) {
  operation_.reset();
  done_ = true;
  for (BatchMember& member : members_) {
    if (!member.submission) continue;
    context_.metrics->tensors_failed.add(1);
    member.submission->handle->complete(reason);
  }
}

std::string Execution::describe() const {
  const std::string name = str("'", request().name, "'");
  return members_.size() == 1 ? str(name_of(request().collective), " of ", name)
                              : str("batch of ", members_.size(), " tensors beginning with ", name);
}

std::vector<int> Execution::awaited() const {
  return operation_ ? operation_->awaited() : std::vector<int>{};
}

void Execution::record(std::string_view phase, Time begin, Time end) {
  if (!context_.timeline->is_open()) return;
  for (const BatchMember& member : members_) {
    context_.timeline->span(member.response.request.name, phase, begin, end);
  }
}

}  // namespace rueda
