// A tensor that the other ranks cannot see, reduced through the ranks' slots: by copies that stay
// in the caches, where reaching it through the kernel takes longer.
//
// It goes in rounds. In each every rank owns one chunk: it puts its part of the others' chunks into
// its slot, combines its own chunk from all slots, leaves the result in its slot, and takes the
// others' results out of theirs. A rank may be some rounds ahead of the others, as many as its slot
// has room for. Each says how far it is; nobody touches another's tensor.
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
  // Among so many ranks chunks are not so short that their flags cost more than they.
  [[nodiscard]] static bool is_possible(int ranks);
  // Whether tensors together go this way under `policy`; the same on all ranks.
  [[nodiscard]] static bool suits(const HostPolicy& policy, std::size_t bytes, std::size_t tensors,
                                  int ranks);

  // `input` null: this rank contributes nothing; `output` null: it has no use for the result. They
  // may be the same. The channel has slots of `slot_bytes`.
  Staging(HostChannel& channel, const Combiner& combine, std::size_t element,
          const std::byte* input, std::byte* output, std::size_t bytes);

  // Of the channel's present collective; before this rank arrives.
  void begin();
  // After all have arrived: who contributes, by member.
  void contribute(std::vector<bool> members) { contributes_ = std::move(members); }

  // Takes one step if it can; returns whether it could.
  bool advance();
  [[nodiscard]] bool done() const { return taken_ == rounds_; }
  // Of results, by this rank, so far.
  [[nodiscard]] std::size_t combined_bytes() const { return combined_bytes_; }
  // Members that are behind this rank.
  [[nodiscard]] std::vector<int> awaited() const;

 private:
  // At the beginning of a slot: of how many rounds its rank has done what.
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
  // Whether all others have done `rounds` rounds.
  [[nodiscard]] bool have_all(Counter counter, std::uint64_t rounds) const;
  // Whether what the others read in that round may be overwritten, since they have.
  [[nodiscard]] bool has_room(Counter counter, std::uint64_t round) const;
  [[nodiscard]] Chunk chunk_of(std::uint64_t round, int owner) const;
  // Where in the slot of `member` lies what it has of a chunk.
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
