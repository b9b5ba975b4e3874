// Where the ranks of a process set on one host meet: flags and small messages in shared memory,
// used for one collective after the other.
//
// Every rank runs the same collectives in the same order, so a sequence number identifies each.
// A rank may overwrite what it wrote for collective s when it gets to s + 2: a rank that has
// arrived at s + 1 has read everything of s.
//
// Not thread-safe: one thread at a time. A thread other than the one driving the engine must enter
// and leave, see Visit.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "onehost/host_memory.h"
#include "onehost/scratch_memory.h"
#include "onehost/visit_gate.h"
#include "onehost/work_claims.h"
#include "transport/turns.h"

namespace rueda {

// Payload that fits into a cache line next to the sequence number. The smallest messages travel
// there, so that they cost a single transfer between two cores.
inline constexpr std::size_t line_bytes = 56;
// Messages of up to this size are copied through slots.
inline constexpr std::size_t slot_bytes = 512 << 10;

enum class Place : std::uint8_t {
  nothing,     // no contribution, or no use for the result
  slot,        // in the rank's slot for this collective
  registered,  // an offset into its registered memory
  address,     // an address in its process
};

// Location of one tensor.
struct Exposure {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
  Place input_place = Place::nothing;
  Place output_place = Place::nothing;
};

// Layout of the memory that a channel's members share. Each member has flags, two lines, two slots
// and two tables; collectives alternate between the two of each.
class ChannelMemory {
 public:
  struct alignas(128) Line {  // two cache lines, since processors fetch pairs
    std::atomic<std::uint64_t> sequence;
    std::array<std::byte, line_bytes> content;
  };
  struct Flags {
    std::array<Line, 2> arrivals;
    alignas(128) std::atomic<std::uint64_t> filled;
    alignas(128) std::atomic<std::uint64_t> finished;
    alignas(128) std::atomic<std::uint64_t> claims;  // first member's: for all
    alignas(128) WakeWord wake;
    std::atomic<std::uint32_t> stopped;
  };
  // A table holds one Exposure per tensor, or one number per member.
  static constexpr std::size_t table_entries = 2048;
  // Bytes that a member needs in control memory.
  [[nodiscard]] static constexpr std::size_t bytes_for(std::size_t slot) {
    return slots_at + 2 * round_up(slot, 64) + 2 * table_bytes;
  }

  // Arguments as for HostChannel, which owns it.
  ChannelMemory(HostMemory& host, const std::vector<int>& members, int rank, std::uint64_t key,
                std::size_t slot, ControlRoom* room);
  ~ChannelMemory();
  ChannelMemory(const ChannelMemory&) = delete;
  ChannelMemory& operator=(const ChannelMemory&) = delete;

  // Looks up the memory of all members; false if one of them has not opened the channel.
  bool find_all();
  // Null if the member has not opened the channel yet.
  [[nodiscard]] Flags* find(int member) const { return flags_[static_cast<std::size_t>(member)]; }
  [[nodiscard]] Flags& flags(int member) const { return *find(member); }

  // Selects the lines, slots and tables of this collective.
  void turn_to(std::uint64_t sequence) { half_ = sequence & 1; }

  [[nodiscard]] Line& arrival_of(int member) const { return flags(member).arrivals[half_]; }
  [[nodiscard]] std::byte* line_of(int member) const { return arrival_of(member).content.data(); }
  [[nodiscard]] std::byte* slot_of(int member) const {
    return begin_of(member) + slots_at + half_ * slot_;
  }
  [[nodiscard]] std::byte* table_of(int member) const {
    return begin_of(member) + slots_at + 2 * slot_ + half_ * table_bytes;
  }
  // This rank's own.
  [[nodiscard]] std::byte* line() const { return line_of(rank_); }
  [[nodiscard]] std::byte* slot() const { return slot_of(rank_); }
  [[nodiscard]] std::byte* table() const { return table_of(rank_); }

  // Call before this rank writes `bytes` into its slot, or anything into its table: allocates the
  // memory. False: the system is out of memory.
  [[nodiscard]] bool populate_slot(std::size_t bytes) {
    return bytes <= populated_[half_].slot || populate_slot_now(bytes);
  }
  [[nodiscard]] bool populate_table() {
    return populated_[half_].has_table || populate_table_now();
  }

 private:
  static constexpr std::size_t slots_at = 4096;
  static constexpr std::size_t table_bytes = table_entries * sizeof(Exposure);
  static_assert(sizeof(Flags) <= slots_at);
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  [[nodiscard]] std::byte* begin_of(int member) const {
    return reinterpret_cast<std::byte*>(find(member));
  }
  [[nodiscard]] bool populate_slot_now(std::size_t bytes);
  [[nodiscard]] bool populate_table_now();

  HostMemory& host_;
  const std::vector<int>& members_;
  const int rank_;
  const std::uint64_t key_;
  const std::size_t slot_;  // bytes, a multiple of a cache line
  struct Populated {
    std::size_t slot = 0;
    bool has_table = false;
  };
  std::array<Populated, 2> populated_;
  std::vector<Flags*> flags_;  // null until the member has opened it
  std::size_t half_ = 0;
};

class HostChannel final : private HostMemory::Visitor {
 public:
  enum class WokenBy : std::uint8_t {
    rank,     // the thread driving the rank's engine, through the wake word of its header
    channel,  // a thread driving only this channel, through the channel's own wake word
  };

  // `members`: host ranks in set order; `rank`: this one's index. All members open the channel
  // under the same key. `slot`: bytes per slot, the same for all members; set if the sizes to copy
  // are known. Throws std::bad_alloc, unless `room` has a block of ChannelMemory::bytes_for(slot).
  HostChannel(std::shared_ptr<HostMemory> host, std::vector<int> members, int rank,
              std::uint64_t key, WokenBy woken_by, std::size_t slot = slot_bytes,
              ControlRoom* room = nullptr);
  ~HostChannel();
  HostChannel(const HostChannel&) = delete;
  HostChannel& operator=(const HostChannel&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  [[nodiscard]] int host_rank(int member) const {
    return members_[static_cast<std::size_t>(member)];
  }
  [[nodiscard]] HostMemory& host() const { return *host_; }
  [[nodiscard]] WakeWord& wake_word() const;

  // Whether all members have opened it; checks again on every call.
  bool is_open() { return open_ || (open_ = memory_.find_all()); }
  // Order of this rank's collectives.
  [[nodiscard]] Turns& turns() { return turns_; }

  // --- One collective

  // Starts the next collective, to which the lines, slots and tables now belong.
  void begin();
  [[nodiscard]] ChannelMemory& memory() { return memory_; }
  [[nodiscard]] const ChannelMemory& memory() const { return memory_; }
  // Publishes what this rank has written.
  void arrive();
  [[nodiscard]] bool all_arrived();

  // This rank has written to its slot after arriving.
  void fill();
  [[nodiscard]] bool has_filled(int member) const;

  // Divides `pieces` pieces of work among the members.
  [[nodiscard]] WorkClaims& divide_work(std::uint64_t pieces);
  // For the current collective.
  [[nodiscard]] ScratchMemory& scratch() { return scratch_; }

  // This rank no longer accesses other ranks' memory.
  void finish();
  [[nodiscard]] bool all_finished();
  [[nodiscard]] bool has_finished(int member) const;

  // Indices of the members that are waited for.
  [[nodiscard]] std::vector<int> not_arrived() const;
  [[nodiscard]] std::vector<int> not_finished() const;

  // Wakes sleeping members. Call it after publishing something, but as late as possible: its fence
  // waits until the caches have taken in the stores.
  void notify();

  // --- Shutdown

  // This rank runs nothing more here and no longer accesses other ranks' memory.
  void stop();
  [[nodiscard]] bool has_stopped(int member) const;
  // Held by an application thread, in its own channel, for as long as it may access other ranks'
  // memory. Once this rank has given up (HostMemory::give_up()), no thread can enter, and the
  // channel stops when the last one leaves.
  class Visit {
   public:
    explicit Visit(HostChannel& channel) : channel_(channel), is_in_(channel.gate_.enter()) {
      if (!is_in_) channel_.stop();
    }
    ~Visit() {
      if (is_in_ && channel_.gate_.leave()) channel_.stop();
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    explicit operator bool() const { return is_in_; }

   private:
    HostChannel& channel_;
    const bool is_in_;
  };

 private:
  void give_up() override;
  [[nodiscard]] bool visits(int host_rank) const override {
    return std::find(members_.begin(), members_.end(), host_rank) != members_.end();
  }

  const std::shared_ptr<HostMemory> host_;
  const std::vector<int> members_;
  const int rank_;
  const WokenBy woken_by_;
  ChannelMemory memory_;
  Turns turns_;
  WorkClaims claims_;
  ScratchMemory scratch_;
  VisitGate gate_;
  bool open_ = false;
  std::uint64_t sequence_ = 0;
  int looking_at_ = 0;  // members before it have arrived, or finished
};

// Inline, since every small collective runs these and they should take nanoseconds.

inline void HostChannel::begin() {
  memory_.turn_to(++sequence_);
  looking_at_ = 0;
}

inline void HostChannel::arrive() {
  memory_.arrival_of(rank_).sequence.store(sequence_, std::memory_order_release);
}

// Skips this rank's own line: reading it would wait until the store has reached the cache, which
// takes about as long as the whole exchange.
inline bool HostChannel::all_arrived() {
  for (; looking_at_ < size(); ++looking_at_) {
    if (looking_at_ == rank_) continue;
    const ChannelMemory::Line& line = memory_.arrival_of(looking_at_);
    if (line.sequence.load(std::memory_order_acquire) != sequence_) return false;
  }
  return true;
}

}  // namespace rueda
