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
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "onehost/channel.h"
#include "onehost/host_memory.h"

namespace rueda {

class EagerBuffers {
 public:
  // Bytes that fit into a buffer.
  static constexpr std::size_t capacity = 4096;

  // `members`: host ranks in the order of the set; `rank`: the index of this one. Publishes under
  // key + 1, key + 2 and so on, one key for each 128 slots.
  EagerBuffers(std::shared_ptr<HostMemory> host, std::vector<int> members, int rank,
               std::uint64_t key, int slots);
  ~EagerBuffers();
  EagerBuffers(const EagerBuffers&) = delete;
  EagerBuffers& operator=(const EagerBuffers&) = delete;

  // Takes memory for what this rank is going to send along with rounds of the plan in `slot`, at
  // most `capacity` bytes. Without memory, offer() gives null until reserve() is called anew. All
  // members call it for the same slots.
  void reserve(int slot, std::size_t bytes);

  // Where this rank puts `bytes` before it joins `round`: as many as were reserved. Aligned to 8
  // bytes. Null: it sends nothing along.
  [[nodiscard]] std::byte* offer(int slot, std::uint64_t round, std::size_t bytes);

  // Once all have joined the round: where that lies which each member has sent along with it, in
  // their order. False: one has sent nothing.
  [[nodiscard]] bool collect(int slot, std::uint64_t round, std::size_t bytes,
                             std::vector<const std::byte*>& contributions);

 private:
  static constexpr int part_slots = 128;
  // What fits lies in the line that tells of it, and costs one transfer between two cores. Aligned
  // to two cache lines: processors fetch them in pairs.
  struct alignas(128) Line {
    std::uint64_t has_content;
    std::array<std::byte, line_bytes> content;
  };
  struct Part {
    std::array<std::array<Line, 2>, part_slots> lines;
    std::array<std::array<std::byte, 2 * capacity>, part_slots> buffers;
  };
  static_assert(sizeof(Part::lines) % small_page == 0);

  [[nodiscard]] Part* publish(std::size_t part);
  [[nodiscard]] Part* find(int member, std::size_t part);
  [[nodiscard]] static std::byte* content_of(Part& part, int slot, std::uint64_t round,
                                             std::size_t bytes);
  [[nodiscard]] std::uint64_t key_of(std::size_t part) const { return key_ + 1 + part; }

  const std::shared_ptr<HostMemory> host_;
  const std::vector<int> members_;
  const int rank_;
  const std::uint64_t key_;
  std::vector<bool> opened_;               // parts, by this rank and so by all
  std::vector<std::vector<Part*>> parts_;  // by part and member; null: not found yet
  std::vector<bool> reserved_;             // slots
};

}  // namespace rueda
