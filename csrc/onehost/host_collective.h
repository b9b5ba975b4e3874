// What every collective on a channel goes through: its turn, the arrival of all, this rank's share
// of the work, and, where ranks touch each other's tensors, the end of everybody's.
#pragma once

#include <cstdint>
#include <vector>

#include "core/status.h"
#include "onehost/channel.h"
#include "onehost/host_reach.h"
#include "transport/operation.h"
#include "transport/transfer_counters.h"

namespace rueda {

// How the ranks of one host exchange what, by size. The same on all ranks, but for huge_pages.
struct HostPolicy {
  // Up to here tensors are copied through slots; above, ranks reach into each other's memory.
  std::size_t flat_limit = 16 << 10;
  // From here on registered tensors are never copied through slots.
  std::size_t registered_min = 1 << 10;
  // Up to here single tensors of which not all are registered go through slots chunk by chunk,
  // whatever the flat limit; above, and where this is 0, ranks reach for them through the kernel.
  // For channels with slots of `slot_bytes`.
  std::size_t staged_limit = 0;
  // Work is divided into pieces of this size, for the processors' private caches.
  std::size_t chunk = 256 << 10;
  // Results of allreduces from here on are written past the caches.
  std::size_t streaming_min = SIZE_MAX;
  // Tensors that are not registered are put onto huge pages where a collective runs again and
  // again.
  bool huge_pages = true;
};

class HostCollective : public Operation {
 public:
  // Whether it lines up at once or waits for start().
  enum class Begin : std::uint8_t { now, later };

  HostCollective(const HostCollective&) = delete;
  HostCollective& operator=(const HostCollective&) = delete;

  // Not for long.
  bool advance() final;
  [[nodiscard]] bool done() const final { return stage_ == Stage::done || !status_.ok(); }
  // After an error the channel cannot be used any more: the others wait in vain, until they are
  // told.
  [[nodiscard]] const Status& status() const final { return status_; }
  [[nodiscard]] std::vector<int> awaited() const final;
  [[nodiscard]] bool uses_transport() const final { return false; }

  // What this rank has done itself in this run, in bytes of results.
  struct Traffic {
    std::int64_t combined = 0;  // the output of combining
    std::int64_t taken = 0;     // data of others, copied as it is
    std::int64_t kernel = 0;    // read or written through the kernel, since it cannot be seen here
  };
  [[nodiscard]] const Traffic& traffic() const { return traffic_; }
  // Where that is added whenever a run has gone well.
  void count_in(TransferCounters& counters) { counters_ = &counters; }

 protected:
  enum class Work : std::uint8_t { done, more, blocked };

  HostCollective(HostChannel& channel, const HostPolicy& policy)
      : channel_(channel), policy_(policy) {}
  // Does not return before no other rank touches a tensor of this one, see quiesce().
  ~HostCollective() override = default;

  // The next collective of the channel. The one before of the same object must be done.
  void start() { start(channel_.turns().line_up()); }
  // In a place of the queue that has been taken before.
  void start(std::uint64_t ticket);
  // Every subclass calls it in its destructor: a collective that is given up must not leave
  // anybody behind who still reads or writes its tensors, where it has `exposed` them.
  void quiesce(bool exposed);

  // The others are about to reach a tensor of this rank.
  void give(const Reach& reach, const void* address, std::size_t bytes) const;

  // Writes into the channel what the others need. Sets status_ where it fails.
  virtual void prepare() = 0;
  // The error of a lack of memory.
  [[nodiscard]] Status no_memory() const;
  // Called after all have arrived until it says done. Sets status_ where it fails.
  virtual Work work() = 0;
  // Whether ranks touch each other's tensors; asked after all have arrived, and the same on all.
  [[nodiscard]] virtual bool shares_tensors() const = 0;
  // Whether all members have a part in work(), and not only each in what it does for itself; asked
  // when all have arrived.
  [[nodiscard]] virtual bool is_shared_work() const { return shares_tensors(); }
  // Members without whom work() does not go on.
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
  std::uint64_t runs_ = 0;  // begun so far
};

}  // namespace rueda
