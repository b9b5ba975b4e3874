#include "coordinator/unfused_collective.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace rueda {

namespace {

// The rows of each rank, in units of which a row has `row`.
std::vector<std::int64_t> lengths_of(const std::vector<std::int64_t>& rows, std::int64_t row) {
  std::vector<std::int64_t> lengths;
  lengths.reserve(rows.size());
  for (const std::int64_t count : rows) lengths.push_back(count * row);
  return lengths;
}

std::int64_t sum_of(const std::vector<std::int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

}  // namespace

std::vector<std::int64_t> rows_per_rank(const Request& request, int ranks) {
  if (!request.splits.empty()) return request.splits;
  const std::int64_t rows = request.shape.front();
  std::vector<std::int64_t> split(static_cast<std::size_t>(ranks), rows / ranks);
  for (std::int64_t i = 0; i < rows % ranks; ++i) ++split[static_cast<std::size_t>(i)];
  return split;
}

std::unique_ptr<Operation> UnfusedCollective::start(const Contributions& contributions) {
  switch (request().collective) {
    case Collective::reduce_scatter: return start_reduce_scatter(contributions);
    case Collective::allgather: return start_allgather(contributions);
    case Collective::broadcast: return start_broadcast(contributions);
    case Collective::alltoall: return start_alltoall(contributions);
    case Collective::persistent_allreduce: return agree_on_persistent();
    default: return nullptr;
  }
}

std::unique_ptr<Operation> UnfusedCollective::start_reduce_scatter(
    const Contributions& contributions) {
  const std::vector<std::int64_t> rows = rows_per_rank(request(), lane_.size());
  const auto row_bytes = static_cast<std::int64_t>(request().row_bytes());
  std::vector<std::int64_t> lengths =
      lengths_of(rows, row_bytes / static_cast<std::int64_t>(size_of(request().dtype)));
  Shape shape = request().shape;
  shape.front() = rows[static_cast<std::size_t>(lane_.rank)];
  const bool even =
      std::all_of(rows.begin(), rows.end(), [&](auto count) { return count == rows.front(); });
  agree_on_results(rows.front() * row_bytes, even);
  std::byte* const output = allocate_output(std::move(shape));
  if (contributions)
    return eager_reduce_scatter(lane_, reduction(), output, lengths, contributions);
  return backend().reduce_scatter(lane_, reduction(), input(), output, std::move(lengths));
}

std::unique_ptr<Operation> UnfusedCollective::start_allgather(const Contributions& contributions) {
  const std::vector<std::int64_t>& rows = member_.response->first_extents;
  const auto row_bytes = static_cast<std::int64_t>(request().row_bytes());
  std::vector<std::int64_t> lengths = lengths_of(rows, row_bytes);
  Shape shape = request().shape;
  shape.front() = sum_of(rows);
  agree_on_results(shape.front() * row_bytes, true);
  std::byte* const output = allocate_output(std::move(shape));
  if (contributions) return eager_allgather(lane_, output, lengths, contributions);
  return backend().allgather(lane_, input(), output, std::move(lengths));
}

std::unique_ptr<Operation> UnfusedCollective::start_broadcast(const Contributions& contributions) {
  const auto bytes = static_cast<std::int64_t>(request().bytes());
  const auto& submission = member_.submission;
  agree_on_results(0, true);  // only a rank that has joined allocates
  if (!submission) unwanted_ = backend().allocate(lane_, request().bytes());
  std::byte* const data = submission ? submission->output : unwanted_.get();
  const int root = request().root;
  return contributions ? eager_broadcast(lane_, data, bytes, root, contributions)
                       : backend().broadcast(lane_, data, bytes, root);
}

std::unique_ptr<Operation> UnfusedCollective::start_alltoall(const Contributions& contributions) {
  const Submission& submission = *member_.submission;
  auto allocate = [this](const std::vector<std::int64_t>& received) {
    Shape shape = member_.submission->request.shape;
    shape.front() = sum_of(received);
    output_.received_splits = received;
    return allocate_output(std::move(shape));
  };
  const std::size_t row_bytes = submission.request.row_bytes();
  if (contributions) return eager_alltoall(lane_, row_bytes, allocate, contributions);
  AlltoallInput input{submission.input, submission.rows, row_bytes,
                      submission.request.output_bytes};
  return backend().alltoall(lane_, std::move(input), std::move(allocate));
}

// Only on GPUs: elsewhere nothing is left to do after negotiation.
std::unique_ptr<Operation> UnfusedCollective::agree_on_persistent() {
  output_.persistent = member_.persistent;
  const Submission& submission = *member_.submission;
  const Piece piece{submission.input, submission.output, request().count()};
  return context_.devices->persist(
      lane_, reduction(), piece,
      [this](std::shared_ptr<DeviceReduction> its) { output_.reduction = std::move(its); });
}

void UnfusedCollective::agree_on_results(std::int64_t bytes, bool alike) {
  const bool brought =
      member_.response->absent.empty() && request().output_bytes == static_cast<std::size_t>(bytes);
  if (request().on_gpu && !(alike && brought)) context_.devices->agree_on_results();
}

std::byte* UnfusedCollective::allocate_output(Shape shape) {
  const std::size_t bytes =
      static_cast<std::size_t>(element_count(shape)) * size_of(request().dtype);
  output_.shape = std::move(shape);
  const auto& submission = member_.submission;
  if (submission && submission->output != nullptr && submission->request.output_bytes == bytes) {
    return submission->output;
  }
  output_.data = backend().allocate(lane_, bytes);
  return output_.data.get();
}

}  // namespace rueda
