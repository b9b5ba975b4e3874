// The format of a stream between two hosts.
//
// A stream is a TCP connection over which one rank sends to another. It carries chunks, each a
// header followed by its bytes. Receipts come back over it: the number of chunks that have arrived
// over this stream so far (64 bits). A header of all zeros asks for a receipt. A chunk says which
// part of which message it is, so any stream between two ranks can carry any chunk, in any order,
// and what was in flight on a broken stream goes over another. Chunks do not name the world or its
// epoch: the rank that opens a stream proves that it belongs to them (stream_opening.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/transport.h"

namespace rueda {

struct ChunkHeader {
  std::uint64_t message = 0;   // number among those from this rank to that peer, from 1
  std::uint64_t previous = 0;  // the preceding message with the same tag; 0 if that and all
                               // before it with the tag are known to have arrived
  std::uint64_t length = 0;    // of the message
  std::uint64_t offset = 0;    // where in the message the chunk begins
  Tag tag = {};
  std::uint32_t bytes = 0;  // of the chunk, after this header
  std::uint32_t unused = 0;
};
static_assert(sizeof(ChunkHeader) == 64, "as it is on the wire");

// Whether it asks for a receipt.
[[nodiscard]] inline bool is_question(const ChunkHeader& header) {
  return header.message == 0 && header.length == 0 && header.bytes == 0;
}

using Receipt = std::uint64_t;

inline constexpr std::size_t max_chunk_bytes = 1 << 20;
inline constexpr std::uint64_t max_message_bytes = std::uint64_t{1} << 48;

}  // namespace rueda
