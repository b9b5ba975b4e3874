// Reduces a tensor that other ranks cannot access, through the ranks' slots. The copies stay in the
// caches, which is faster where access through the kernel is slow.
//
// Works in rounds. In each round every rank owns one chunk. A rank copies its part of the others'
// chunks into its slot, combines its own chunk from all slots, leaves the result in its slot, and
// copies the others' results out of theirs. A rank may be ahead by as many rounds as its slot has
// room for. Each publishes its progress; nobody accesses another's tensor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "onehost/channel.h"
#include "onehost/host_collective.h"
#include "reduce/combine.h"

namespace rueda {

class Staging {
 public:
  // Whether, with this many ranks, chunks are long enough to be worth the cost of their flags.
  [[nodiscard]] static bool is_possible(int ranks);
  // Whether such tensors are staged under `policy`; same on all ranks.
  [[nodiscard]] static bool suits(const HostPolicy& policy, std::size_t bytes, std::size_t tensors,
                                  int ranks);

  // Null `input`: this rank contributes nothing. Null `output`: it does not need the result. They
  // may be the same memory. The channel has slots of `slot_bytes`.
  Staging(HostChannel& channel, const Combiner& combine, std::size_t element,
          const std::byte* input, std::byte* output, std::size_t bytes);

  // Starts on the channel's current collective; call before this rank arrives.
  void begin();
  // Call once all have arrived: which members contribute.
  void contribute(std::vector<bool> members) { contributes_ = std::move(members); }

  // Takes one step if possible; returns whether it was.
  bool advance();
  [[nodiscard]] bool done() const { return taken_ == rounds_; }
  // Bytes of results that this rank has combined so far.
  [[nodiscard]] std::size_t combined_bytes() const { return combined_bytes_; }
  // Members that are behind this rank.
  [[nodiscard]] std::vector<int> awaited() const;

 private:
  // At the beginning of a slot: the number of rounds for which its rank has done each step.
  struct Progress {
    alignas(128) std::atomic<std::uint64_t> given;
    alignas(128) std::atomic<std::uint64_t> combined;
    alignas(128) std::atomic<std::uint64_t> taken;
  };
  using Counter = std::atomic<std::uint64_t> Progress::*;
  struct Chunk {
    std::size_t first;  // in bytes
    std::size_t bytes;
  };
  static constexpr std::size_t data_at = 4096;
  static_assert(sizeof(Progress) <= data_at);

  [[nodiscard]] static std::size_t max_chunk_bytes(int ranks);
  [[nodiscard]] static std::size_t chunk_bytes(int ranks, std::size_t bytes);
  [[nodiscard]] Progress& progress_of(int member) const;
  // Whether all other ranks have done `rounds` rounds.
  [[nodiscard]] bool have_all(Counter counter, std::uint64_t rounds) const;
  // Whether other ranks have read what this one wrote there, so that the round may overwrite it.
  [[nodiscard]] bool has_room(Counter counter, std::uint64_t round) const;
  [[nodiscard]] Chunk chunk_of(std::uint64_t round, int owner) const;
  // Where the slot of `member` holds its data for a chunk.
  [[nodiscard]] std::byte* place_of(int member, std::uint64_t round, int owner) const;

  void give();
  void combine();
  void take();

  HostChannel& channel_;
  const Combiner& combine_;
  const std::size_t element_;
  const std::byte* const input_;
  std::byte* const output_;
  const std::size_t bytes_;
  const std::size_t chunk_;
  const std::uint64_t rounds_;
  std::vector<bool> contributes_;
  std::uint64_t given_ = 0;
  std::uint64_t combined_ = 0;
  std::uint64_t taken_ = 0;
  std::size_t combined_bytes_ = 0;
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> targets_;
};

}  // namespace rueda
