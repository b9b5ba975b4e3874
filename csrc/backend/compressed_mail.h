// What two ranks of a compressed allreduce send each other: encoded chunks, unnumbered, in an order
// that both know. If sizes depend on the values, each chunk is preceded by a message with its size.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/compressed_tensors.h"

namespace rueda {

// How many chunks of each kind are in flight between two ranks at a time.
inline constexpr std::size_t mail_window = 4;
// An owner sends a chunk's result after its contributions to this many later chunks.
inline constexpr std::int64_t result_lag = 2;

enum class ChunkKind : std::uint8_t { contribution, result };

struct ChunkMessage {
  ChunkKind kind;
  std::size_t max_bytes;
};
// Everything that rank `from` sends to rank `to`.
[[nodiscard]] std::vector<ChunkMessage> messages_between(const CompressedTensors& tensors, int from,
                                                         int to);

// Buffers that are reused once nobody else holds them.
using EncodedChunk = std::shared_ptr<std::vector<std::byte>>;
class ChunkBuffers {
 public:
  // Of at least `bytes` bytes. Throws std::bad_alloc.
  [[nodiscard]] EncodedChunk take(std::size_t bytes);

 private:
  std::vector<EncodedChunk> buffers_;
};

using ChunkSize = std::uint32_t;

// To one rank of the lane.
class CompressedOutbox {
 public:
  CompressedOutbox(const Lane& lane, int rank, bool tells_sizes)
      : lane_(lane), rank_(rank), tells_sizes_(tells_sizes) {}

  void send(EncodedChunk chunk, std::size_t bytes);
  [[nodiscard]] bool is_full() const { return sent_.size() >= 2 * mail_window; }
  [[nodiscard]] bool is_empty() const { return sent_.empty(); }
  // Releases what has been sent; returns whether there was anything.
  bool advance();
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  struct Sent {
    std::unique_ptr<ChunkSize> size;  // address must be stable
    Ticket size_ticket;
    EncodedChunk chunk;
    Ticket ticket;

    [[nodiscard]] bool is_done() const {
      return ticket->done && (!size_ticket || size_ticket->done);
    }
  };

  Lane lane_;
  int rank_;
  bool tells_sizes_;
  std::deque<Sent> sent_;
  Status status_;
};

// From one rank of the lane.
class CompressedInbox {
 public:
  CompressedInbox(const Lane& lane, int rank, bool tells_sizes, std::vector<ChunkMessage> messages)
      : lane_(lane), rank_(rank), tells_sizes_(tells_sizes), messages_(std::move(messages)) {}

  // Posts receives and checks for arrivals; returns whether anything moved. Throws std::bad_alloc.
  bool advance();
  [[nodiscard]] const Status& status() const { return status_; }
  // Whether everything has arrived and been taken.
  [[nodiscard]] bool is_done() const;

  // Chunks of a kind are taken in order, one at a time.
  [[nodiscard]] bool has_arrived(ChunkKind kind) const;
  [[nodiscard]] ConstBytes front(ChunkKind kind) const;
  void pop(ChunkKind kind);

 private:
  struct Arrival {
    EncodedChunk chunk;
    std::size_t bytes;
    Ticket ticket;
    bool is_counted = false;
  };

  [[nodiscard]] std::deque<Arrival>& arrivals(ChunkKind kind) {
    return arrivals_[static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] const std::deque<Arrival>& arrivals(ChunkKind kind) const {
    return arrivals_[static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] Ticket receive(MutableBytes target);
  bool post_next();
  bool await_size(std::size_t max_bytes);
  bool look(Arrival& arrival);

  Lane lane_;
  int rank_;
  bool tells_sizes_;
  std::vector<ChunkMessage> messages_;
  std::size_t posted_ = 0;
  ChunkSize size_ = 0;  // of the next message, valid once its ticket is done
  Ticket size_ticket_;
  std::array<std::deque<Arrival>, 2> arrivals_;
  ChunkBuffers buffers_;
  Status status_;
};

}  // namespace rueda
