#include <algorithm>

#include "backend/alltoall_operation.h"
#include "backend/backend.h"
#include "backend/broadcast_operation.h"
#include "backend/ring_operation.h"

namespace rueda {

namespace {

std::int64_t chunk_elements(const Lane& lane, DataType dtype) {
  return std::max<std::int64_t>(1, lane.chunk_bytes / static_cast<std::int64_t>(size_of(dtype)));
}

class RingBackend : public Backend {
 public:
  [[nodiscard]] std::string_view name() const override { return "ring"; }

  std::unique_ptr<Operation> allreduce(const Lane& lane, const Reduction& reduction,
                                       std::byte* data, std::int64_t count) override {
    return std::make_unique<RingOperation>(
        lane,
        RingPlan::allreduce(lane.rank, lane.size(), count, chunk_elements(lane, reduction.dtype)),
        data, size_of(reduction.dtype), &reduction);
  }

  std::unique_ptr<Operation> reduce_scatter(const Lane& lane, const Reduction& reduction,
                                            std::byte* data,
                                            std::vector<std::int64_t> lengths) override {
    return std::make_unique<RingOperation>(
        lane,
        RingPlan::reduce_scatter(lane.rank, std::move(lengths),
                                 chunk_elements(lane, reduction.dtype)),
        data, size_of(reduction.dtype), &reduction);
  }

  std::unique_ptr<Operation> allgather(const Lane& lane, std::byte* data,
                                       std::vector<std::int64_t> lengths) override {
    return std::make_unique<RingOperation>(
        lane, RingPlan::allgather(lane.rank, std::move(lengths), lane.chunk_bytes), data, 1,
        nullptr);
  }

  std::unique_ptr<Operation> broadcast(const Lane& lane, std::byte* data, std::int64_t bytes,
                                       int root) override {
    return std::make_unique<BroadcastOperation>(lane, data, bytes, root);
  }

  std::unique_ptr<Operation> alltoall(const Lane& lane, AlltoallInput input,
                                      AllocateRows allocate) override {
    return std::make_unique<AlltoallOperation>(lane, std::move(input), std::move(allocate));
  }
};

}  // namespace

std::unique_ptr<Backend> make_ring_backend() {
  return std::make_unique<RingBackend>();
}

}  // namespace rueda
