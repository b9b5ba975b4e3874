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
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "core/unique_fd.h"
#include "onehost/control_memory.h"
#include "onehost/direct_access.h"
#include "onehost/peer_process.h"
#include "onehost/registered_memory.h"
#include "onehost/wake.h"
#include "transport/bootstrap.h"
#include "transport/peer_end.h"

namespace rueda {

class HostMemory {
 public:
  // Collective over all ranks of `bootstrap`, which must all be on this host; once per bootstrap.
  // On failure the ranks do without: the error says why and is the same in kind on all ranks.
  static Expected<std::shared_ptr<HostMemory>> form(Bootstrap& bootstrap, Time deadline);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  [[nodiscard]] int rank() const { return rank_; }  // as in the bootstrap
  [[nodiscard]] int size() const { return static_cast<int>(control_.size()); }
  // What a rank is called in errors.
  [[nodiscard]] int world_rank(int rank) const {
    return world_ranks_[static_cast<std::size_t>(rank)];
  }

  [[nodiscard]] HostRankHeader& header(int rank) const {
    return control_[static_cast<std::size_t>(rank)].header();
  }
  // To wake whoever makes the rank's progress.
  [[nodiscard]] WakeTarget wake_target(int rank) const {
    return {&header(rank).wake, events_[static_cast<std::size_t>(rank)].get()};
  }

  // Takes zeroed memory from this rank's control memory and makes it known to the others under
  // `key`. A key serves once: neither this rank nor its peers use it for anything else, ever.
  // Aligned to 4096 bytes, from 2 MiB on to 2 MiB, and then on huge pages where the kernel gives
  // them. The first `populated` bytes have memory behind them; the rest is to be populated before
  // it is used, see populate(). Throws std::bad_alloc, but not where `room` has a block of that
  // length. Thread-safe, as are reserve() and retire().
  [[nodiscard]] std::byte* publish(std::uint64_t key, std::size_t bytes,
                                   std::size_t populated = small_page, ControlRoom* room = nullptr);
  // Room for a block of each of these lengths, for what ranks are about to agree to publish: one
  // that finds none says so instead of failing afterwards. Null where there is none.
  [[nodiscard]] static std::shared_ptr<ControlRoom> reserve(const std::shared_ptr<HostMemory>& host,
                                                            std::span<const std::size_t> lengths);
  // What `rank` has published under the key; null while it has not. Wait-free.
  [[nodiscard]] std::byte* find(int rank, std::uint64_t key) const;
  // This rank uses nothing any more that it or `members` published under the key, and publishes
  // nothing under it. The memory is taken again once all members have said so, when the rank that
  // published it publishes or retires next. Each of the members names the same members.
  void retire(std::uint64_t key, const std::vector<int>& members);

  // A tensor of this rank that the others can reach, as an offset into its registered memory.
  [[nodiscard]] std::optional<std::uint64_t> registered(const void* address,
                                                        std::size_t bytes) const {
    return registered_memory_->offset_of(address, bytes);
  }
  // The memory at an offset of `rank`'s registered memory, mapped here.
  [[nodiscard]] std::byte* registered_of(int rank, std::uint64_t offset) const {
    return registered_[static_cast<std::size_t>(rank)] + offset;
  }

  // Whether every rank may read and write the memory of every other (process_vm_readv); found out
  // by trying. Where not, `no_direct_access` says why.
  [[nodiscard]] bool has_direct_access() const { return no_direct_access_.ok(); }
  [[nodiscard]] const Status& no_direct_access() const { return no_direct_access_; }
  // Whether the others reach this memory of this rank, one way or the other.
  [[nodiscard]] bool is_reachable(const void* address, std::size_t bytes) const {
    return has_direct_access() || registered(address, bytes).has_value();
  }
  // [local, local + bytes) = [remote, ...) of `rank`, and the other way. Any memory. Errors name
  // the rank; peer_lost where its process is gone.
  Status read_from(int rank, void* local, std::uint64_t remote, std::size_t bytes) const;
  Status write_to(int rank, const void* local, std::uint64_t remote, std::size_t bytes) const;

  // --- The end of a broken world

  // What touches memory of other ranks until it is told to stop.
  class Visitor {
   public:
    virtual void give_up() = 0;
    // Whether it touches memory of this rank.
    [[nodiscard]] virtual bool visits(int rank) const = 0;

   protected:
    ~Visitor() = default;
  };
  void add(Visitor& visitor);
  void remove(Visitor& visitor);
  // Tells all visitors. To be called by whoever drives the engine, when the world of this rank has
  // ended: before anything waits for another rank to stop, so that no two wait for each other.
  void give_up();
  // The same where one rank is lost: tells those that visit it.
  void give_up_on(int rank);
  // Until when to wait, at most, for other ranks to stop: the same for all who wait once this rank
  // has given up, however many there are.
  [[nodiscard]] Time end_of_waiting() const;

  // Whether the ranks of this host are more than the processors they may run on, or share one.
  [[nodiscard]] bool is_oversubscribed() const { return is_oversubscribed_; }

  // Whether every rank fences for the others when it goes to sleep, see wake.h.
  [[nodiscard]] bool sleepers_fence() const { return sleepers_fence_; }

  // Whether the process of `rank` has ended, as a zombie too.
  [[nodiscard]] bool has_ended(int rank) const;
  // Of the process of `rank`, under which this one sees it; -1 where it does not, or is it itself.
  [[nodiscard]] int process_of(int rank) const {
    return processes_[static_cast<std::size_t>(rank)]->identifier();
  }
  // Ends the process of a rank that was lost for its silence: when it woke it would read and write
  // the memory of those that have gone on. False where it cannot be told for sure from others.
  bool fence(int rank) const { return processes_[static_cast<std::size_t>(rank)]->kill(); }
  // What tells of the end of the process of `rank`. May be kept for longer than this lives.
  [[nodiscard]] PeerEnd end_of(int rank) const;

 private:
  friend class HostMemoryForming;
  HostMemory(const Bootstrap& bootstrap, RegisteredMemory& registered);

  const int rank_;
  RegisteredMemory* const registered_memory_;
  std::vector<int> world_ranks_;
  std::vector<ControlMemory> control_;              // by rank, as all that follows
  std::vector<SharedMapping> registered_mappings_;  // none for ranks of this process
  std::vector<std::byte*> registered_;
  std::vector<RemoteProcess> remote_;
  std::vector<std::shared_ptr<const PeerProcess>> processes_;
  std::vector<UniqueFd> events_;  // each an eventfd
  std::unique_ptr<ControlBlocks> blocks_;
  Status no_direct_access_;
  std::mutex visitors_mutex_;
  std::set<Visitor*> visitors_;
  std::atomic<Time> end_of_waiting_{Time::max()};
  bool is_oversubscribed_ = false;
  bool sleepers_fence_ = false;
};

}  // namespace rueda
