// Small tensors that the members of a plan send along when they join one of its rounds (see
// ReadinessTable), so that nothing is left to exchange once all have joined. Comparable to MPI's
// eager messages.
//
// Every member has two buffers per slot of the readiness table, in its own memory, for rounds with
// even and odd numbers. It writes to one before it joins the round. A member that reads in the log
// that all have joined may read everyone's buffers. Two are enough: nobody joins a round before
// reading what came with the previous one, and no round begins before all have joined that one.
//
// The memory is published in parts, as plans need it. A member without memory sends nothing along,
// which all other members see.
//
// With Writers::first, only the first member writes, namely what it received from other hosts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "onehost/channel.h"
#include "onehost/host_memory.h"

namespace rueda {

class EagerBuffers {
 public:
  enum class Writers : std::uint8_t { all, first };
  struct Settings {
    std::uint64_t key = 0;            // published under key + 1 and up, one key per 32 slots
    int slots = 0;                    // as in the readiness table
    std::size_t capacity = 16 << 10;  // bytes per buffer; whole small pages
    Writers writers = Writers::all;
    std::size_t memory = 16 << 20;  // limit for all buffers of this rank
  };

  // `members`: host ranks in set order; `rank`: this one's index. Without `host` it is the only
  // member and uses private memory.
  EagerBuffers(std::shared_ptr<HostMemory> host, std::vector<int> members, int rank,
               const Settings& settings);
  ~EagerBuffers();
  EagerBuffers(const EagerBuffers&) = delete;
  EagerBuffers& operator=(const EagerBuffers&) = delete;

  // Makes room for what this rank will send along with rounds of the plan in `slot`, up to the
  // capacity. Without room, offer() returns null until reserve() is called again. All members call
  // it for the same slots.
  void reserve(int slot, std::size_t bytes);
  // Whether any writer has memory.
  [[nodiscard]] bool is_reserved(int slot) const {
    return reserved_[static_cast<std::size_t>(slot)];
  }

  // Where this rank writes `used` of the reserved `bytes` before it joins `round`. Aligned to 8
  // bytes. Null if there is no memory: it sends nothing along.
  [[nodiscard]] std::byte* offer(int slot, std::uint64_t round, std::size_t bytes,
                                 std::size_t used);

  // Cancels what was to be sent along with a round. For a writer, before it joins the round.
  void withdraw(int slot, std::uint64_t round);

  // Once all have joined the round: finds what each writer sent along, in member order. False: one
  // of them sent nothing.
  [[nodiscard]] bool collect(int slot, std::uint64_t round, std::size_t bytes,
                             std::vector<const std::byte*>& contributions);

 private:
  static constexpr int part_slots = 32;
  // Contents that fit are stored in the line that announces them, so they cost one transfer between
  // two cores. Aligned to two cache lines, since processors fetch pairs.
  struct alignas(128) Line {
    std::uint64_t has_content;
    std::array<std::byte, line_bytes> content;
  };
  // Followed by two buffers for each slot.
  struct Part {
    std::array<std::array<Line, 2>, part_slots> lines;
  };
  static_assert(sizeof(Part) % small_page == 0);
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  [[nodiscard]] bool writes() const { return settings_.writers == Writers::all || rank_ == 0; }
  [[nodiscard]] Part* publish(std::size_t part);
  [[nodiscard]] Part* find(int member, std::size_t part);
  [[nodiscard]] std::byte* buffers_of(Part& part, int slot) const;
  [[nodiscard]] static std::size_t stride_of(std::size_t bytes);
  // Allocates it if necessary.
  [[nodiscard]] bool has_memory(int slot, std::uint64_t round, std::size_t bytes, std::size_t used);
  void give_memory_back(Part& own, int slot);
  [[nodiscard]] std::byte* content_of(Part& part, int slot, std::uint64_t round,
                                      std::size_t bytes) const;
  [[nodiscard]] std::uint64_t key_of(std::size_t part) const { return settings_.key + 1 + part; }

  const std::shared_ptr<HostMemory> host_;
  const std::vector<int> members_;
  const int rank_;
  const Settings settings_;
  std::vector<std::unique_ptr<Part, Free>> private_;  // parts, without a host
  std::vector<bool> opened_;                          // parts, by this rank and thus by all
  std::vector<std::vector<Part*>> parts_;             // by part and member; null: not found yet
  std::vector<bool> reserved_;                        // slots
  // Slots and rounds (even, odd) for which this rank has sent something along.
  std::vector<std::array<bool, 2>> offered_;
  // Populated bytes of each slot's two buffers, then the total.
  std::vector<std::array<std::size_t, 2>> populated_;
  std::size_t memory_ = 0;
};

}  // namespace rueda
