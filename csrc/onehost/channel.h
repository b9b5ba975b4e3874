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
#include <vector>

#include "onehost/host_memory.h"
#include "onehost/scratch_memory.h"
#include "onehost/visit_gate.h"
#include "onehost/work_claims.h"
#include "transport/turns.h"

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

// What lies where in the memory that the members of a channel show each other: of each member
// flags, two lines, two slots and two tables, of which one belongs to the present collective.
class ChannelMemory {
 public:
  struct alignas(128) Line {  // two cache lines: processors fetch them in pairs
    std::atomic<std::uint64_t> sequence;
    std::array<std::byte, line_bytes> content;
  };
  struct Flags {
    std::array<Line, 2> arrivals;
    alignas(128) std::atomic<std::uint64_t> filled;
    alignas(128) std::atomic<std::uint64_t> finished;
    alignas(128) std::atomic<std::uint64_t> claims;  // of the first member: of all
    alignas(128) WakeWord wake;
    std::atomic<std::uint32_t> stopped;
  };
  // Room in a table for one Exposure per tensor, or for one number per member.
  static constexpr std::size_t table_entries = 2048;
  // What a member takes of the control memory.
  [[nodiscard]] static constexpr std::size_t bytes_for(std::size_t slot) {
    return slots_at + 2 * round_up(slot, 64) + 2 * table_bytes;
  }

  // As HostChannel, in which it lies.
  ChannelMemory(HostMemory& host, const std::vector<int>& members, int rank, std::uint64_t key,
                std::size_t slot, ControlRoom* room);
  ~ChannelMemory();
  ChannelMemory(const ChannelMemory&) = delete;
  ChannelMemory& operator=(const ChannelMemory&) = delete;

  // Looks for that of all members; false where one has not opened the channel.
  bool find_all();
  // Null while a member has not.
  [[nodiscard]] Flags* find(int member) const { return flags_[static_cast<std::size_t>(member)]; }
  [[nodiscard]] Flags& flags(int member) const { return *find(member); }

  // Lines, slots and tables are those of this collective from now on.
  void turn_to(std::uint64_t sequence) { half_ = sequence & 1; }

  [[nodiscard]] Line& arrival_of(int member) const { return flags(member).arrivals[half_]; }
  [[nodiscard]] std::byte* line_of(int member) const { return arrival_of(member).content.data(); }
  [[nodiscard]] std::byte* slot_of(int member) const {
    return begin_of(member) + slots_at + half_ * slot_;
  }
  [[nodiscard]] std::byte* table_of(int member) const {
    return begin_of(member) + slots_at + 2 * slot_ + half_ * table_bytes;
  }
  // Those of this rank.
  [[nodiscard]] std::byte* line() const { return line_of(rank_); }
  [[nodiscard]] std::byte* slot() const { return slot_of(rank_); }
  [[nodiscard]] std::byte* table() const { return table_of(rank_); }

  // Before this rank writes so much into its slot, or anything into its table: takes memory for it.
  // False: the system has none left.
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
  std::vector<Flags*> flags_;  // null while a member has not opened it
  std::size_t half_ = 0;
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
  // block of ChannelMemory::bytes_for(slot).
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

  // Whether all members have opened it; looks again with every call.
  bool is_open() { return open_ || (open_ = memory_.find_all()); }
  // The order of this rank's collectives.
  [[nodiscard]] Turns& turns() { return turns_; }

  // --- One collective

  // The next one begins; what lines, slots and tables hold from now on belongs to it.
  void begin();
  [[nodiscard]] ChannelMemory& memory() { return memory_; }
  [[nodiscard]] const ChannelMemory& memory() const { return memory_; }
  // Makes known what this rank has written.
  void arrive();
  [[nodiscard]] bool all_arrived();

  // This rank has put something into its slot after having arrived.
  void fill();
  [[nodiscard]] bool has_filled(int member) const;

  // Divides work of so many pieces.
  [[nodiscard]] WorkClaims& divide_work(std::uint64_t pieces);
  // For the collective whose turn it is.
  [[nodiscard]] ScratchMemory& scratch() { return scratch_; }

  // This rank touches no memory of the others any more.
  void finish();
  [[nodiscard]] bool all_finished();
  [[nodiscard]] bool has_finished(int member) const;

  // Members that are waited for, as indices.
  [[nodiscard]] std::vector<int> not_arrived() const;
  [[nodiscard]] std::vector<int> not_finished() const;

  // Wakes members that sleep. To be called after something was made known, but not at once where
  // that can be helped: a fence in it would wait until the caches have taken that in.
  void notify();

  // --- The end

  // This rank goes through nothing more here, and touches nothing of the others any more.
  void stop();
  [[nodiscard]] bool has_stopped(int member) const;
  // A thread of the application in a channel of its own, for as long as it may touch anything of
  // the others. Once this rank has given up, see HostMemory::give_up(), no thread comes in, and the
  // channel stops when the last has left.
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
  int looking_at_ = 0;  // the members before it have arrived, or finished
};

// What every small collective goes through, in line so that it takes nanoseconds.

inline void HostChannel::begin() {
  memory_.turn_to(++sequence_);
  looking_at_ = 0;
}

inline void HostChannel::arrive() {
  memory_.arrival_of(rank_).sequence.store(sequence_, std::memory_order_release);
}

// A look at this rank's own line would wait until the store has reached the cache, about as long as
// the whole exchange takes.
inline bool HostChannel::all_arrived() {
  for (; looking_at_ < size(); ++looking_at_) {
    if (looking_at_ == rank_) continue;
    const ChannelMemory::Line& line = memory_.arrival_of(looking_at_);
    if (line.sequence.load(std::memory_order_acquire) != sequence_) return false;
  }
  return true;
}

}  // namespace rueda
