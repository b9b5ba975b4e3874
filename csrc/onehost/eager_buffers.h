// What members of a plan send along when they join one of its rounds (see ReadinessTable): small
// tensors, so that nothing is left to exchange once all have joined. In MPI's terms an eager
// message.
//
// Every member has two buffers for each slot of the readiness table, in memory of its own, for
// rounds with an even and with an odd number. It writes to one before it joins the round, and
// whoever reads in the log that all have joined may read those of all. Two are enough: nobody joins
// a round before he has read what was sent along with the one before, and none begins before all
// have joined that.
//
// The memory is published in parts as plans need it. A member without memory sends nothing along,
// which all others see.
//
// Or the first member alone writes, what has come to it from other hosts.
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
    std::uint64_t key = 0;  // publishes under key + 1 and so on, one key for each 32 slots
    int slots = 0;          // as the readiness table has
    std::size_t capacity = 16 << 10;  // bytes that fit into a buffer: whole small pages
    Writers writers = Writers::all;
    std::size_t memory = 16 << 20;  // for all buffers of this rank, at most
  };

  // `members`: host ranks in the order of the set; `rank`: the index of this one. Without `host` it
  // is alone, and the memory is its own.
  EagerBuffers(std::shared_ptr<HostMemory> host, std::vector<int> members, int rank,
               const Settings& settings);
  ~EagerBuffers();
  EagerBuffers(const EagerBuffers&) = delete;
  EagerBuffers& operator=(const EagerBuffers&) = delete;

  // Room for what this rank is going to send along with rounds of the plan in `slot`, at most the
  // capacity. Without room, offer() gives null until reserve() is called anew. All members call it
  // for the same slots.
  void reserve(int slot, std::size_t bytes);
  // Whether a writer has memory.
  [[nodiscard]] bool is_reserved(int slot) const {
    return reserved_[static_cast<std::size_t>(slot)];
  }

  // Where this rank puts what it sends along before it joins `round`, `used` of the `bytes` that
  // were reserved. Aligned to 8 bytes. Null, as where there is no memory: it sends nothing along.
  [[nodiscard]] std::byte* offer(int slot, std::uint64_t round, std::size_t bytes,
                                 std::size_t used);

  // Nothing is sent along with a round after all. By a writer, before it joins the round.
  void withdraw(int slot, std::uint64_t round);

  // Once all have joined the round: where that lies which each writer has sent along with it, in
  // their order. False: one has sent nothing.
  [[nodiscard]] bool collect(int slot, std::uint64_t round, std::size_t bytes,
                             std::vector<const std::byte*>& contributions);

 private:
  static constexpr int part_slots = 32;
  // What fits lies in the line that tells of it, and costs one transfer between two cores. Aligned
  // to two cache lines: processors fetch them in pairs.
  struct alignas(128) Line {
    std::uint64_t has_content;
    std::array<std::byte, line_bytes> content;
  };
  // Behind the lines are two buffers for each slot.
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
  // Takes it where it is not there yet.
  [[nodiscard]] bool has_memory(int slot, std::uint64_t round, std::size_t bytes, std::size_t used);
  void give_memory_back(Part& own, int slot);
  [[nodiscard]] std::byte* content_of(Part& part, int slot, std::uint64_t round,
                                      std::size_t bytes) const;
  [[nodiscard]] std::uint64_t key_of(std::size_t part) const { return settings_.key + 1 + part; }

  const std::shared_ptr<HostMemory> host_;
  const std::vector<int> members_;
  const int rank_;
  const Settings settings_;
  std::vector<std::unique_ptr<Part, Free>> private_;  // parts, where there is no host
  std::vector<bool> opened_;                          // parts, by this rank and so by all
  std::vector<std::vector<Part*>> parts_;             // by part and member; null: not found yet
  std::vector<bool> reserved_;                        // slots
  // Slots and rounds, even and odd ones, with which this rank has sent something along.
  std::vector<std::array<bool, 2>> offered_;
  // By slot, of its two buffers: bytes with memory behind them. And all of them.
  std::vector<std::array<std::size_t, 2>> populated_;
  std::size_t memory_ = 0;
};

}  // namespace rueda
