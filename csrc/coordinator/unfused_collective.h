// The collectives that are never fused, all but allreduce: each is a batch by itself. Most bring a
// result of another size than what goes in, for which there is room here unless the application has
// some.
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

// How a reduce-scatter divides the rows of its tensor among so many ranks: as asked for, or as
// evenly as possible, where the first ranks get one more.
[[nodiscard]] std::vector<std::int64_t> rows_per_rank(const Request& request, int ranks);

class UnfusedCollective {
 public:
  // All are referred to.
  UnfusedCollective(const ExecutionContext& context, const Lane& lane, const BatchMember& member)
      : context_(context), lane_(lane), member_(member) {}
  UnfusedCollective(const UnfusedCollective&) = delete;
  UnfusedCollective& operator=(const UnfusedCollective&) = delete;

  // Once. `contributions`: what all ranks contribute, if it has come already. Null for what is no
  // such collective. Throws std::bad_alloc, as the operation may.
  [[nodiscard]] std::unique_ptr<Operation> start(const Contributions& contributions);
  // What the caller gets, once the operation is done.
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
  // Null where this rank has joined.
  [[nodiscard]] const std::byte* input() const {
    return member_.submission ? member_.submission->input : nullptr;
  }
  // On a GPU: unless all ranks have brought memory of `bytes`, which fits where they are `alike`,
  // they agree that they all have got what they allocate. Called by all or none.
  void agree_on_results(std::int64_t bytes, bool alike);
  // Memory for the result, which goes to the application.
  std::byte* allocate_output(Shape shape);

  const ExecutionContext& context_;
  const Lane& lane_;
  const BatchMember& member_;
  OperationOutput output_;
  std::shared_ptr<std::byte[]> unwanted_;  // a broadcast's data where this rank has joined
};

}  // namespace rueda
