#include "backend/narrowed_allreduce.h"

#include "backend/packed_operation.h"
#include "reduce/cast.h"

namespace rueda {

std::unique_ptr<Operation> narrowed_allreduce(Backend& backend, BufferPool& pool, const Lane& lane,
                                              const Reduction& reduction,
                                              const std::vector<Piece>& pieces) {
  const DataType dtype = reduction.dtype;
  const DataType wire = *reduction.wire;
  const auto bytes_of = [wire](std::int64_t count) {
    return static_cast<std::size_t>(count) * size_of(wire);
  };
  std::int64_t count = 0;
  for (const Piece& piece : pieces) count += piece.count;
  const bool takes_part = contributes(pieces);
  TransferCounters& counters = *lane.counters;

  const auto pack = [&](std::byte* buffer) {
    for (const Piece& piece : pieces) {
      if (takes_part) cast(buffer, wire, piece.input, dtype, piece.count, reduction.prescale);
      buffer += bytes_of(piece.count);
    }
    if (takes_part) counters.bytes_packed.add(static_cast<std::int64_t>(bytes_of(count)));
  };
  const auto start = [&](std::byte* buffer) {
    Reduction narrow = reduction;
    narrow.dtype = wire;
    narrow.wire.reset();
    narrow.prescale = narrow.postscale = 1.0;
    return backend.allreduce(lane, narrow, {{takes_part ? buffer : nullptr, buffer, count}});
  };
  auto unpack = [=, &counters, factor = reduction.postscale](const std::byte* buffer) {
    for (const Piece& piece : pieces) {
      if (piece.output != nullptr) {
        cast(piece.output, dtype, buffer, wire, piece.count, factor);
        counters.bytes_packed.add(static_cast<std::int64_t>(bytes_of(piece.count)));
      }
      buffer += bytes_of(piece.count);
    }
  };
  return std::make_unique<PackedOperation>(pool, bytes_of(count), pack, start, std::move(unpack));
}

}  // namespace rueda
