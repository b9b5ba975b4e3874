#include <cstring>

#include "backend/alltoall_operation.h"
#include "backend/backend.h"
#include "backend/broadcast_operation.h"
#include "backend/compressed_allreduce.h"
#include "backend/contribute.h"
#include "backend/leaf_allreduce.h"
#include "backend/lengths.h"
#include "backend/narrowed_allreduce.h"
#include "backend/packed_operation.h"
#include "backend/ring_operation.h"

namespace rueda {

namespace {

class RingBackend : public Backend {
 public:
  explicit RingBackend(std::size_t kept_buffers) : buffers_(kept_buffers) {}

  [[nodiscard]] std::string_view name() const override { return "ring"; }

  // Reduces a single tensor in place; several share a fusion buffer.
  std::unique_ptr<Operation> allreduce(const Lane& lane, const Reduction& reduction,
                                       std::vector<Piece> pieces) override {
    if (reduction.leaves) {
      return std::make_unique<LeafAllreduce>(lane, reduction, std::move(pieces));
    }
    if (reduction.compression.codec != CodecKind::none) {
      return compressed_allreduce(lane, reduction, std::move(pieces));
    }
    if (reduction.wire) {
      return narrowed_allreduce(*this, buffers_, lane, reduction, pieces);
    }
    if (pieces.size() == 1 && pieces.front().output != nullptr) {
      const Piece& piece = pieces.front();
      contribute(piece.output, piece.input, piece.count, reduction);
      return ring(lane, reduction, piece.output, piece.count);
    }
    return fused_allreduce(lane, reduction, std::move(pieces));
  }

  std::unique_ptr<Operation> reduce_scatter(const Lane& lane, const Reduction& reduction,
                                            const std::byte* input, std::byte* output,
                                            std::vector<std::int64_t> lengths) override {
    const std::size_t element = size_of(reduction.dtype);
    const std::int64_t count = sum(lengths);
    const auto before = static_cast<std::size_t>(sum(lengths, lane.rank)) * element;
    const auto own =
        static_cast<std::size_t>(lengths[static_cast<std::size_t>(lane.rank)]) * element;
    return std::make_unique<PackedOperation>(
        buffers_, static_cast<std::size_t>(count) * element,
        [&](std::byte* buffer) { contribute(buffer, input, count, reduction); },
        [&](std::byte* buffer) {
          return std::make_unique<RingOperation>(
              lane,
              RingPlan::reduce_scatter(lane.rank, std::move(lengths),
                                       chunk_elements(lane, size_of(reduction.dtype))),
              buffer, element, &reduction);
        },
        [=](const std::byte* buffer) {
          if (own > 0) std::memcpy(output, buffer + before, own);
        });
  }

  std::unique_ptr<Operation> allgather(const Lane& lane, const std::byte* input, std::byte* output,
                                       std::vector<std::int64_t> lengths) override {
    const auto own = static_cast<std::size_t>(lengths[static_cast<std::size_t>(lane.rank)]);
    if (own > 0 && input != nullptr) {
      std::memcpy(output + sum(lengths, lane.rank), input, own);
    }
    return std::make_unique<RingOperation>(
        lane, RingPlan::allgather(lane.rank, std::move(lengths), lane.chunk_bytes), output, 1,
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

 private:
  static std::unique_ptr<Operation> ring(const Lane& lane, const Reduction& reduction,
                                         std::byte* data, std::int64_t count) {
    return std::make_unique<RingOperation>(
        lane,
        RingPlan::allreduce(lane.rank, lane.size(), count,
                            chunk_elements(lane, size_of(reduction.dtype))),
        data, size_of(reduction.dtype), &reduction);
  }

  std::unique_ptr<Operation> fused_allreduce(const Lane& lane, const Reduction& reduction,
                                             std::vector<Piece> pieces) {
    const std::size_t element = size_of(reduction.dtype);
    std::int64_t count = 0;
    for (const Piece& piece : pieces) count += piece.count;
    const auto pack = [&](std::byte* buffer) {
      for (const Piece& piece : pieces) {
        contribute(buffer, piece.input, piece.count, reduction);
        buffer += static_cast<std::size_t>(piece.count) * element;
      }
      lane.counters->bytes_packed.add(count * static_cast<std::int64_t>(element));
    };
    const auto start = [&](std::byte* buffer) { return ring(lane, reduction, buffer, count); };
    auto unpack = [element, pieces, counters = lane.counters](const std::byte* buffer) {
      for (const Piece& piece : pieces) {
        const std::size_t bytes = static_cast<std::size_t>(piece.count) * element;
        if (piece.output != nullptr && bytes > 0) {
          std::memcpy(piece.output, buffer, bytes);
          counters->bytes_packed.add(static_cast<std::int64_t>(bytes));
        }
        buffer += bytes;
      }
    };
    return std::make_unique<PackedOperation>(buffers_, static_cast<std::size_t>(count) * element,
                                             pack, start, std::move(unpack));
  }

  BufferPool buffers_;
};

}  // namespace

std::unique_ptr<Backend> make_ring_backend(std::size_t kept_buffers) {
  return std::make_unique<RingBackend>(kept_buffers);
}

}  // namespace rueda
