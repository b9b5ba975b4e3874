// The collectives that are never fused, which is all but allreduce: each is a batch of its own.
// Most return a result of another size than their input, which is allocated here unless the
// application provides memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "backend/eager.h"
#include "coordinator/batch.h"
#include "coordinator/handle_state.h"

namespace rueda {

// How a reduce-scatter divides the rows of its tensor among the ranks: as requested, or as evenly
// as possible, with one more row for the first ranks.
[[nodiscard]] std::vector<std::int64_t> rows_per_rank(const Request& request, int ranks);

class UnfusedCollective {
 public:
  // Keeps references to all arguments.
  UnfusedCollective(const ExecutionContext& context, const Lane& lane, const BatchMember& member)
      : context_(context), lane_(lane), member_(member) {}
  UnfusedCollective(const UnfusedCollective&) = delete;
  UnfusedCollective& operator=(const UnfusedCollective&) = delete;

  // Call once. `contributions`: what all ranks contribute, if it has arrived already. Null if it is
  // not such a collective. Throws std::bad_alloc, as the operation may.
  [[nodiscard]] std::unique_ptr<Operation> start(const Contributions& contributions);
  // The caller's result, once the operation is done.
  [[nodiscard]] OperationOutput take_output() { return std::move(output_); }

 private:
  std::unique_ptr<Operation> start_reduce_scatter(const Contributions& contributions);
  std::unique_ptr<Operation> start_allgather(const Contributions& contributions);
  std::unique_ptr<Operation> start_broadcast(const Contributions& contributions);
  std::unique_ptr<Operation> start_alltoall(const Contributions& contributions);
  std::unique_ptr<Operation> agree_on_persistent();

  [[nodiscard]] const Request& request() const { return member_.response->request; }
  [[nodiscard]] Backend& backend() const {
    return request().on_gpu ? *context_.devices : *context_.backend;
  }
  [[nodiscard]] Reduction reduction() const {
    return reduction_of(*member_.response, lane_.size(), context_.averages_over_all);
  }
  // Null if this rank has joined.
  [[nodiscard]] const std::byte* input() const {
    return member_.submission ? member_.submission->input : nullptr;
  }
  // On a GPU: unless all ranks have brought memory of `bytes`, which fits if they are `alike`, they
  // agree that all have got what they allocate. Called by all or none.
  void agree_on_results(std::int64_t bytes, bool alike);
  // Allocates the result, which goes to the application.
  std::byte* allocate_output(Shape shape);

  const ExecutionContext& context_;
  const Lane& lane_;
  const BatchMember& member_;
  OperationOutput output_;
  std::shared_ptr<std::byte[]> unwanted_;  // a broadcast's data if this rank has joined
};

}  // namespace rueda
