#include "backend/packed_allreduce.h"

#include "backend/packed_operation.h"

namespace rueda {

std::unique_ptr<Operation> packed_allreduce(BufferPool& pool, const Lane& lane, DataType dtype,
                                            const std::vector<Piece>& pieces,
                                            const StartPacked& start_all) {
  const std::size_t element = size_of(dtype);
  std::int64_t count = 0;
  for (const Piece& piece : pieces) count += piece.count;
  const std::size_t bytes = static_cast<std::size_t>(count) * element;
  const bool takes_part = contributes(pieces);
  const auto pack = [&](std::byte* buffer) {
    for (const Piece& piece : pieces) {
      const std::size_t length = static_cast<std::size_t>(piece.count) * element;
      if (piece.input != nullptr) copy_bytes(buffer, piece.input, length, Stores::cached);
      buffer += length;
    }
    lane.counters->bytes_packed.add(static_cast<std::int64_t>(bytes));
  };
  const auto start = [&](std::byte* buffer) {
    return start_all({takes_part ? buffer : nullptr, buffer, count});
  };
  auto unpack = [element, pieces, bytes, counters = lane.counters](const std::byte* buffer) {
    for (const Piece& piece : pieces) {
      const std::size_t length = static_cast<std::size_t>(piece.count) * element;
      if (piece.output != nullptr) copy_bytes(piece.output, buffer, length, Stores::cached);
      buffer += length;
    }
    counters->bytes_packed.add(static_cast<std::int64_t>(bytes));
  };
  return std::make_unique<PackedOperation>(pool, bytes, pack, start, std::move(unpack));
}

}  // namespace rueda
