// What the ranks of one host can reach of each other: a control memory of each rank (flags, small
// messages, staging), the registered memory of each, and, where the kernel permits it, any memory.
//
// All files are anonymous and their descriptors are handed on, so that nothing is left behind
// however the ranks end, nothing of an earlier job can be met, and /dev/shm need not exist.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "transport/bootstrap.h"

namespace rueda {

// A place where a rank sleeps until others have something for it. Lies in shared memory.
struct alignas(64) WakeWord {
  // Grows with every wake-up, so that none is missed between looking and sleeping.
  std::atomic<std::uint32_t> wakes;
  // How many threads sleep, or are about to and look a last time.
  std::atomic<std::uint32_t> sleepers;
};

// The first bytes of each rank's control memory.
struct HostRankHeader {
  WakeWord wake;                          // of the rank's coordinator, or whoever drives it
  std::atomic<std::uint32_t> has_failed;  // this rank's world is broken: it starts nothing more
};

class HostMemory {
 public:
  // Collective over all ranks of `bootstrap`, which must all be on this host. On failure the ranks
  // do without: the error says why and is the same in kind on all ranks.
  static Expected<std::shared_ptr<HostMemory>> form(Bootstrap& bootstrap, Time deadline);
  ~HostMemory();

  [[nodiscard]] int rank() const;  // as in the bootstrap
  [[nodiscard]] int size() const;

  [[nodiscard]] HostRankHeader& header(int rank) const;

  // Takes zeroed memory from this rank's control memory and makes it known to the others under
  // `key`, which this rank has not in use. Aligned to 4096 bytes. Throws std::bad_alloc.
  [[nodiscard]] std::byte* publish(std::uint64_t key, std::size_t bytes);
  // What `rank` has published under the key; null while it has not. Wait-free.
  [[nodiscard]] std::byte* find(int rank, std::uint64_t key) const;
  // This rank uses nothing any more that it or `members` published under the key. The memory is
  // taken again once all members have said so.
  void retire(std::uint64_t key, const std::vector<int>& members);

  // A tensor of this rank that the others can reach, as an offset into its registered memory.
  [[nodiscard]] std::optional<std::uint64_t> registered(const void* address,
                                                        std::size_t bytes) const;
  // The memory at an offset of `rank`'s registered memory, mapped here.
  [[nodiscard]] std::byte* registered_of(int rank, std::uint64_t offset) const;

  // Whether every rank may read and write the memory of every other (process_vm_readv); found out
  // by trying. Where not, `no_direct_access` says why.
  [[nodiscard]] bool has_direct_access() const;
  [[nodiscard]] const Status& no_direct_access() const;
  // [local, local + bytes) = [remote, ...) of `rank`, and the other way. Any memory.
  Status read_from(int rank, void* local, std::uint64_t remote, std::size_t bytes) const;
  Status write_to(int rank, const void* local, std::uint64_t remote, std::size_t bytes) const;

  // Whether the ranks of this host are more than the processors they may run on, or share one.
  [[nodiscard]] bool outnumbers_processors() const;

  // Whether the process of `rank` has ended, as a zombie too.
  [[nodiscard]] bool has_ended(int rank) const;
};

// Wakes whoever sleeps on `word`; costs no system call while nobody does. The caller has made
// visible what it wakes for.
void wake(WakeWord& word);

}  // namespace rueda
