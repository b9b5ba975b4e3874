// The control memory of one rank, which all ranks of the host map:
//
//   HostRankHeader | directory: key → block | lanes: what each peer has retired | blocks
//
// Only its rank writes the directory and hands blocks out; each peer writes a lane of its own.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "onehost/free_ranges.h"
#include "onehost/shared_mapping.h"
#include "onehost/wake.h"

namespace rueda {

// How a rank's world has ended: it starts nothing any more.
inline constexpr std::uint32_t world_is_broken = 1;
inline constexpr std::uint32_t world_is_left = 2;

// The first bytes of each rank's control memory.
struct HostRankHeader {
  WakeWord wake;                         // of whoever makes the rank's progress
  std::atomic<std::uint32_t> world_end;  // 0 while it has not
  // On which this rank was when it last waited for others, plus 1; 0 where it never has.
  alignas(64) std::atomic<std::uint32_t> processor;
};

// Where blocks are found by their keys: a hash table with linear probing.
class Directory {
 public:
  static constexpr std::size_t capacity = 8192;  // a power of two

  // Any rank, wait-free: the place that the key was entered with; 0 where it is not there.
  [[nodiscard]] std::uint64_t find(std::uint64_t key) const;
  // Its own rank alone, one thread at a time. `place` is a multiple of small_page and not 0.
  [[nodiscard]] bool enter(std::uint64_t key, std::uint64_t place);  // false: full
  void remove(std::uint64_t key);

 private:
  // `place` is unused where no search need go on beyond, removed where another key may come.
  static constexpr std::uint64_t unused = 0;
  static constexpr std::uint64_t removed = 1;
  struct Entry {
    std::atomic<std::uint64_t> key;
    std::atomic<std::uint64_t> place;
  };
  std::array<Entry, capacity> entries_;
};

// Keys on their way from a peer that has retired them; one writer, one reader.
class RetirementLane {
 public:
  [[nodiscard]] bool put(std::uint64_t key);    // false: full
  [[nodiscard]] bool take(std::uint64_t& key);  // false: empty

 private:
  static constexpr std::uint32_t capacity = 32;  // a power of two, since the counts wrap around
  alignas(64) std::atomic<std::uint32_t> sent_;
  std::atomic<std::uint32_t> taken_;
  std::array<std::atomic<std::uint64_t>, capacity> keys_;
};

// How one rank's control memory is divided, as seen by any rank.
class ControlMemory {
 public:
  ControlMemory() = default;
  // The mapping holds at least min_bytes(size).
  ControlMemory(std::shared_ptr<const SharedMapping> mapping, int size)
      : mapping_(std::move(mapping)), size_(size) {}

  [[nodiscard]] static std::size_t min_bytes(int size);

  [[nodiscard]] HostRankHeader& header() const;
  [[nodiscard]] Directory& directory() const;
  [[nodiscard]] RetirementLane& lane(int peer) const;
  [[nodiscard]] std::byte* at(std::uint64_t place) const { return mapping_->memory() + place; }
  [[nodiscard]] FreeRange blocks() const;
  // Takes memory for what comes before the blocks; false: the system has none left.
  [[nodiscard]] bool populate_front() const { return populate(mapping_->memory(), blocks().begin); }

 private:
  std::shared_ptr<const SharedMapping> mapping_;
  int size_ = 0;
};

class ControlBlocks;

// Room for blocks that will be published: taken beforehand, so that publishing them cannot fail.
// What is left of it is given back at its end, before that of the ControlBlocks.
class ControlRoom {
 public:
  ControlRoom(ControlBlocks& owner, std::vector<FreeRange> blocks)
      : owner_(owner), blocks_(std::move(blocks)) {}
  ~ControlRoom();
  ControlRoom(const ControlRoom&) = delete;
  ControlRoom& operator=(const ControlRoom&) = delete;

 private:
  friend class ControlBlocks;
  ControlBlocks& owner_;
  std::vector<FreeRange> blocks_;
};

// A rank's use of its own control memory and of its lanes in the others'. Thread-safe.
class ControlBlocks {
 public:
  // `all` are the control memories of the ranks and outlive this object.
  ControlBlocks(int rank, std::span<const ControlMemory> all);

  // Room for a block of each of these lengths; null where there is none.
  [[nodiscard]] std::unique_ptr<ControlRoom> reserve(std::span<const std::size_t> lengths);
  // `populated`: how much of it has memory behind it at once. `room`: where the block comes from,
  // if it has one of this length.
  [[nodiscard]] std::byte* publish(std::uint64_t key, std::size_t bytes, std::size_t populated,
                                   ControlRoom* room);
  void retire(std::uint64_t key, const std::vector<int>& members);

 private:
  friend class ControlRoom;
  // What has been said of a key so far.
  struct Retirement {
    bool is_own = false;    // this rank has retired it, so that `members` is known
    std::set<int> awaited;  // members that had not when this rank did
    std::set<int> early;    // peers that did before
  };

  [[nodiscard]] const ControlMemory& own() const { return all_[static_cast<std::size_t>(rank_)]; }
  [[nodiscard]] std::optional<FreeRange> take(std::size_t bytes);
  [[nodiscard]] std::optional<FreeRange> take_from(ControlRoom& room, std::size_t bytes);
  void give_back(std::span<const FreeRange> reserved);
  void tell(int peer, std::uint64_t key);
  void send_delayed();
  void hear();
  void reclaim(std::uint64_t key);

  const int rank_;
  const std::span<const ControlMemory> all_;
  std::mutex mutex_;
  FreeRanges free_;
  std::size_t reserved_ = 0;                        // blocks in rooms; each has a directory entry
  std::map<std::uint64_t, FreeRange> published_;    // by key
  std::map<std::uint64_t, Retirement> retired_;     // by key, until all members have
  std::vector<std::deque<std::uint64_t>> delayed_;  // by peer: had no room in the lane yet
};

}  // namespace rueda
