// The meeting place of the ranks of a process set on one host: flags and small messages through
// which they go through one collective after the other.
//
// Every rank goes through the same collectives in the same order, so a sequence number tells them
// apart. What a rank writes for collective s it may overwrite for s + 2: whoever has arrived at
// s + 1 has read everything of s.
//
// Not thread-safe: one thread at a time. Where that is not whoever drives the engine, it enters and
// leaves, see Visit.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "onehost/host_memory.h"

namespace rueda {

// What fits into a cache line beside the sequence number: the smallest messages travel in it, so
// that they cost a single transfer between two cores.
inline constexpr std::size_t line_bytes = 56;
// Small messages are copied through slots of up to this size.
inline constexpr std::size_t slot_bytes = 512 << 10;

enum class Place : std::uint8_t {
  nothing,     // this rank contributes nothing, or has no use for the result
  slot,        // in the rank's slot of this collective
  registered,  // an offset into its registered memory
  address,     // an address of its process
};

// Where the memory of one tensor lies.
struct Exposure {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
  Place input_place = Place::nothing;
  Place output_place = Place::nothing;
};

class HostChannel final : private HostMemory::Visitor {
 public:
  enum class WokenBy : std::uint8_t {
    rank,     // whoever drives the rank's engine: the wake word of its header
    channel,  // a thread that drives this channel only: a wake word of the channel's own
  };

  // `members`: host ranks in the order of the set; `rank`: the index of this one. All members open
  // a channel under the same key. `slot`: bytes of each of their slots, the same for all, where
  // what will be copied through them is known. Throws std::bad_alloc, but not where `room` has a
  // block of bytes_for(slot).
  HostChannel(std::shared_ptr<HostMemory> host, std::vector<int> members, int rank,
              std::uint64_t key, WokenBy woken_by, std::size_t slot = slot_bytes,
              ControlRoom* room = nullptr);
  ~HostChannel();
  // What it takes of the control memory.
  [[nodiscard]] static constexpr std::size_t bytes_for(std::size_t slot) {
    return slots_at + 2 * round_up(slot, 64) + 2 * table_bytes;
  }
  HostChannel(const HostChannel&) = delete;
  HostChannel& operator=(const HostChannel&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  [[nodiscard]] int host_rank(int member) const { return members_[index(member)]; }
  [[nodiscard]] HostMemory& host() const { return *host_; }
  [[nodiscard]] WakeWord& wake_word() const;

  // Whether all members have opened it; looks again with every call.
  bool is_open() { return open_ || find_all(); }

  // --- The order of this rank's collectives

  // Takes a place in the queue.
  [[nodiscard]] std::uint64_t line_up() { return next_ticket_++; }
  [[nodiscard]] bool is_turn_of(std::uint64_t ticket) const { return serving_ == ticket; }
  void end_turn() { ++serving_; }

  // --- One collective

  // The next one begins; what lines and slots hold from now on belongs to it.
  void begin();
  [[nodiscard]] std::span<std::byte, line_bytes> line() const;
  [[nodiscard]] std::byte* slot() const { return slot_of(rank_); }
  // Before this rank writes so much into its slot, or anything into its table: takes memory for it.
  // False: the system has none left.
  [[nodiscard]] bool populate_slot(std::size_t bytes) {
    return bytes <= populated_[parity()].slot || populate_slot_now(bytes);
  }
  [[nodiscard]] bool populate_table() {
    return populated_[parity()].has_table || populate_table_now();
  }
  // Room for one Exposure per tensor, or for one number per member.
  static constexpr std::size_t table_entries = 2048;
  [[nodiscard]] std::byte* table() const { return table_of(rank_); }
  // Makes known what this rank has written.
  void arrive();
  [[nodiscard]] bool all_arrived();
  [[nodiscard]] const std::byte* line_of(int member) const;
  [[nodiscard]] std::byte* slot_of(int member) const;
  [[nodiscard]] std::byte* table_of(int member) const;

  // This rank has put something into its slot after having arrived.
  void fill();
  [[nodiscard]] bool has_filled(int member) const;

  // This rank touches no memory of the others any more.
  void finish();
  [[nodiscard]] bool all_finished();
  [[nodiscard]] bool has_finished(int member) const;

  // Members that are waited for, as indices.
  [[nodiscard]] std::vector<int> not_arrived() const;
  [[nodiscard]] std::vector<int> not_finished() const;

  // Work that the members divide among them as they come to it: every member says how many pieces
  // there are, then claims them until there is nothing left to claim.
  void divide_work(std::uint64_t pieces);
  // The number of a piece that nobody else gets.
  [[nodiscard]] std::optional<std::uint64_t> claim();

  // Wakes members that sleep. To be called after something was made known, but not at once where
  // that can be helped: a fence in it would wait until the caches have taken that in.
  void notify();

  // Memory of this rank alone for the collective whose turn it is, kept for the next ones: what is
  // fresh from the system costs more to touch than most collectives take. Its content is undefined.
  [[nodiscard]] std::byte* scratch(std::size_t bytes) {
    return bytes <= scratch_bytes_ ? scratch_.get() : grow_scratch(bytes);
  }

  // This rank goes through nothing more here, and touches nothing of the others any more.
  void stop();
  // A thread of the application in a channel of its own, for as long as it may touch anything of
  // the others. Once this rank has given up, see HostMemory::give_up(), no thread comes in, and the
  // channel stops when the last has left. Costs no fence.
  class Visit {
   public:
    explicit Visit(HostChannel& channel) : channel_(channel), is_in_(channel.enter()) {}
    ~Visit() {
      if (is_in_) channel_.leave();
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    explicit operator bool() const { return is_in_; }

   private:
    HostChannel& channel_;
    const bool is_in_;
  };
  [[nodiscard]] bool has_stopped(int member) const;

 private:
  struct alignas(128) Line {  // two cache lines: processors fetch them in pairs
    std::atomic<std::uint64_t> sequence;
    std::array<std::byte, line_bytes> content;
  };
  struct Block {
    std::array<Line, 2> arrivals;
    alignas(128) std::atomic<std::uint64_t> filled;
    alignas(128) std::atomic<std::uint64_t> finished;
    alignas(128) std::atomic<std::uint64_t> claims;  // of the first member: of all
    alignas(128) WakeWord wake;
    std::atomic<std::uint32_t> stopped;
  };
  static constexpr std::size_t slots_at = 4096;
  static constexpr std::size_t table_bytes = table_entries * sizeof(Exposure);
  static_assert(sizeof(Block) <= slots_at);
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  [[nodiscard]] static std::size_t index(int member) { return static_cast<std::size_t>(member); }
  [[nodiscard]] Block& block(int member) const { return *blocks_[index(member)]; }
  [[nodiscard]] std::size_t parity() const { return sequence_ & 1; }
  bool find_all();
  [[nodiscard]] std::byte* grow_scratch(std::size_t bytes);
  [[nodiscard]] bool populate_slot_now(std::size_t bytes);
  [[nodiscard]] bool populate_table_now();
  void give_up() override;
  [[nodiscard]] bool visits(int host_rank) const override {
    return std::find(members_.begin(), members_.end(), host_rank) != members_.end();
  }
  [[nodiscard]] bool enter();
  void leave();
  [[nodiscard]] bool has_given_up() const;

  const std::shared_ptr<HostMemory> host_;
  const std::vector<int> members_;
  const int rank_;
  const std::uint64_t key_;
  const WokenBy woken_by_;
  const std::size_t slot_;  // bytes, a multiple of a cache line
  struct Populated {
    std::size_t slot = 0;
    bool has_table = false;
  };
  std::array<Populated, 2> populated_;  // by parity
  std::vector<Block*> blocks_;          // null while a member has not opened it
  std::unique_ptr<std::byte[]> scratch_;
  std::size_t scratch_bytes_ = 0;
  // The thread that is inside, and whoever gives up, each write one and look at the other.
  const bool fences_for_others_;
  std::atomic<bool> is_inside_{false};
  std::atomic<bool> given_up_{false};
  bool open_ = false;
  std::uint64_t next_ticket_ = 0;
  std::uint64_t serving_ = 0;
  std::uint64_t sequence_ = 0;
  std::uint64_t pieces_ = 0;
  std::uint64_t first_claim_ = 0;  // of this collective
  std::uint64_t next_claims_ = 0;  // where the next ones begin
  int looking_at_ = 0;             // the members before it have arrived, or finished
};

// What every small collective goes through, in line so that it takes nanoseconds.

inline void HostChannel::begin() {
  ++sequence_;
  looking_at_ = 0;
}

inline std::span<std::byte, line_bytes> HostChannel::line() const {
  return block(rank_).arrivals[parity()].content;
}

inline void HostChannel::arrive() {
  block(rank_).arrivals[parity()].sequence.store(sequence_, std::memory_order_release);
}

// A look at this rank's own line would wait until the store has reached the cache, about as long as
// the whole exchange takes.
inline bool HostChannel::all_arrived() {
  for (; looking_at_ < size(); ++looking_at_) {
    if (looking_at_ == rank_) continue;
    const Line& line = block(looking_at_).arrivals[parity()];
    if (line.sequence.load(std::memory_order_acquire) != sequence_) return false;
  }
  return true;
}

// Where others make this thread fence, the order of its own instructions is enough.
inline bool HostChannel::has_given_up() const {
  if (!fences_for_others_) return given_up_.load(std::memory_order_seq_cst);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return given_up_.load(std::memory_order_relaxed);
}

inline bool HostChannel::enter() {
  is_inside_.store(true,
                   fences_for_others_ ? std::memory_order_relaxed : std::memory_order_seq_cst);
  if (!has_given_up()) return true;
  leave();
  return false;
}

inline void HostChannel::leave() {
  is_inside_.store(false,
                   fences_for_others_ ? std::memory_order_release : std::memory_order_seq_cst);
  if (has_given_up()) stop();
}

inline const std::byte* HostChannel::line_of(int member) const {
  return block(member).arrivals[parity()].content.data();
}

}  // namespace rueda
