// The steps of every collective on a channel: its turn, the arrival of all ranks, this rank's share
// of the work, and, if ranks access each other's tensors, the end of everyone's work.
#pragma once

#include <cstdint>
#include <vector>

#include "core/status.h"
#include "onehost/channel.h"
#include "onehost/host_reach.h"
#include "transport/operation.h"
#include "transport/transfer_counters.h"

namespace rueda {

// How the ranks of one host exchange data, by size. Same on all ranks, except huge_pages.
struct HostPolicy {
  // Up to this size tensors are copied through slots; above it, ranks access each other's memory.
  std::size_t flat_limit = 16 << 10;
  // From this size on, registered tensors are never copied through slots.
  std::size_t registered_min = 1 << 10;
  // Up to this size, single tensors that are not all registered go through slots chunk by chunk,
  // whatever the flat limit. Above it, and if this is 0, ranks access them through the kernel. For
  // channels with slots of `slot_bytes`.
  std::size_t staged_limit = 0;
  // Size of the pieces that work is divided into, to suit the processors' private caches.
  std::size_t chunk = 256 << 10;
  // Allreduce results from this size on are written with non-temporal stores.
  std::size_t streaming_min = SIZE_MAX;
  // Move unregistered tensors to huge pages if a collective on them is repeated.
  bool huge_pages = true;
};

class HostCollective : public Operation {
 public:
  // Whether it lines up immediately or waits for start().
  enum class Begin : std::uint8_t { now, later };

  HostCollective(const HostCollective&) = delete;
  HostCollective& operator=(const HostCollective&) = delete;

  // Never runs for long.
  bool advance() final;
  [[nodiscard]] bool done() const final { return stage_ == Stage::done || !status_.ok(); }
  // After an error the channel is unusable: the other ranks wait in vain until they are told.
  [[nodiscard]] const Status& status() const final { return status_; }
  [[nodiscard]] std::vector<int> awaited() const final;
  [[nodiscard]] bool uses_transport() const final { return false; }

  // What this rank itself has done in this run, in bytes of results.
  struct Traffic {
    std::int64_t combined = 0;  // output of combining
    std::int64_t taken = 0;     // other ranks' data, copied as is
    std::int64_t kernel = 0;    // read or written through the kernel, since not mapped here
  };
  [[nodiscard]] const Traffic& traffic() const { return traffic_; }
  // Adds the traffic of every successful run to `counters`.
  void count_in(TransferCounters& counters) { counters_ = &counters; }

 protected:
  enum class Work : std::uint8_t { done, more, blocked };

  HostCollective(HostChannel& channel, const HostPolicy& policy)
      : channel_(channel), policy_(policy) {}
  // Returns only once no other rank accesses this rank's tensors, see quiesce().
  ~HostCollective() override = default;

  // Runs the channel's next collective. This object's previous run must be done.
  void start() { start(channel_.turns().line_up()); }
  // With a ticket taken before.
  void start(std::uint64_t ticket);
  // Every subclass must call this in its destructor. If tensors were `exposed`, an abandoned
  // collective must not leave another rank reading or writing them.
  void quiesce(bool exposed);

  // Announces that other ranks will access a tensor of this rank.
  void give(const Reach& reach, const void* address, std::size_t bytes) const;

  // Writes what the other ranks need into the channel. Sets status_ on failure.
  virtual void prepare() = 0;
  // The error for being out of memory.
  [[nodiscard]] Status no_memory() const;
  // Called repeatedly, once all have arrived, until it returns done. Sets status_ on failure.
  virtual Work work() = 0;
  // Whether ranks access each other's tensors. Called once all have arrived; same on all ranks.
  [[nodiscard]] virtual bool shares_tensors() const = 0;
  // Whether all members share the work, instead of each working only for itself. Called once all
  // have arrived.
  [[nodiscard]] virtual bool is_shared_work() const { return shares_tensors(); }
  // Members that work() is waiting for.
  [[nodiscard]] virtual std::vector<int> awaited_at_work() const { return {}; }

  HostChannel& channel_;
  const HostPolicy policy_;
  Status status_;
  Traffic traffic_;

 private:
  enum class Stage : std::uint8_t { queued, arriving, working, finishing, done };

  void complete();
  void poll_failed();
  void wake_helpers();
  [[nodiscard]] std::vector<int> awaited_members() const;
  [[nodiscard]] int world_rank(int member) const;

  TransferCounters* counters_ = nullptr;
  Stage stage_ = Stage::done;
  std::uint64_t ticket_ = 0;
  int fruitless_ = 0;
  std::uint64_t runs_ = 0;  // started so far
};

}  // namespace rueda
