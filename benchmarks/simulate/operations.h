// The steps of collectives, as operations that the engine's own Sequence and Pipeline compose: they
// go through the engine's plans as its operations do, but send no bytes and wait in simulated time.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "links.h"
#include "mailbox.h"
#include "plan/double_tree.h"
#include "plan/recursive_plan.h"
#include "plan/ring_plan.h"
#include "plan/ring_progress.h"
#include "plan/tree_progress.h"
#include "timeline.h"

namespace rueda::simulate {

class SimulatedOperation;

// What operations of all ranks share.
struct Fabric {
  const Costs& costs;
  Timeline& timeline;
  Links& links;
  std::vector<Mailbox<SimulatedOperation>> mailboxes;  // by rank
};

// Told apart from others of its rank by a key, which is the same on all ranks. Nothing fails here.
class SimulatedOperation : public Operation {
 public:
  SimulatedOperation(Fabric& fabric, int rank, std::uint64_t key)
      : fabric_(fabric), key_(key), rank_(rank) {
    mailbox().open(key, this);
  }
  ~SimulatedOperation() override {
    mailbox().close(key_);
    fabric_.links.count_data(rank_, messages_sent_, bytes_sent_);
  }
  SimulatedOperation(const SimulatedOperation&) = delete;
  SimulatedOperation& operator=(const SimulatedOperation&) = delete;

  [[nodiscard]] std::uint64_t key() const { return key_; }
  // A message has arrived; advance() takes it.
  virtual void deliver(int from) { mailbox().put(key_, from); }

  [[nodiscard]] const Status& status() const override { return status_; }
  [[nodiscard]] std::vector<int> awaited() const override { return {}; }

 protected:
  [[nodiscard]] Mailbox<SimulatedOperation>& mailbox() const {
    return fabric_.mailboxes[static_cast<std::size_t>(rank_)];
  }
  [[nodiscard]] Time clock() const { return fabric_.timeline.clock(rank_); }
  void spend(double nanoseconds_spent) const { fabric_.timeline.spend(rank_, nanoseconds_spent); }
  // To the same operation of another rank. `peer` is that, or null as long as it has not been
  // found; it lasts until it has received everything. Returns when the send is over.
  Time send(int to, SimulatedOperation*& peer, std::int64_t bytes);
  // Is advanced then.
  void wake_at(Time at) const;

  Fabric& fabric_;
  const std::uint64_t key_;
  const int rank_;

 private:
  std::int64_t messages_sent_ = 0;
  std::int64_t bytes_sent_ = 0;
  Status status_;
};

// RingOperation.
class SimulatedRing final : public SimulatedOperation {
 public:
  // The ring goes through `members`, of which this rank is number plan's own. One element is
  // `element` bytes.
  SimulatedRing(Fabric& fabric, int rank, std::uint64_t key, const RingPlan& plan,
                const std::vector<int>& members, std::int64_t element);

  void deliver(int /*from*/) override { ++arrived_; }
  bool advance() override;
  [[nodiscard]] bool done() const override { return done_; }

 private:
  void look_at_next_receive();
  bool take_receives();
  bool post_sends();
  bool take_sends();
  void wake_for_sends();

  const RingPlan plan_;
  const std::int64_t hops_;
  const std::int64_t element_;
  const int next_;
  RingProgress progress_;
  // The hop that is received next.
  std::int64_t receive_bytes_ = 0;
  bool reduces_ = false;
  std::vector<Time> sending_;  // when each will be over; few
  SimulatedOperation* next_operation_ = nullptr;
  std::int64_t arrived_ = 0;  // and not taken
  bool done_ = false;
};

// RecursiveOperation.
class SimulatedRecursion final : public SimulatedOperation {
 public:
  // `plan`: of this rank among `members`, for elements of `element` bytes.
  SimulatedRecursion(Fabric& fabric, int rank, std::uint64_t key, RecursivePlan plan,
                     const std::vector<int>& members, std::int64_t element);

  bool advance() override;
  [[nodiscard]] bool done() const override { return next_ == plan_.exchanges.size(); }

 private:
  const std::vector<int>& members_;
  const std::int64_t element_;
  const RecursivePlan plan_;
  std::size_t next_ = 0;
  bool begun_ = false;
  bool received_ = false;
  Time sent_;
};

// TreeOperation.
class SimulatedTree final : public SimulatedOperation {
 public:
  // This rank is number `place` of `members`, in tree 0 or 1. In chunks of `chunk` bytes.
  SimulatedTree(Fabric& fabric, int rank, std::uint64_t key, int tree, int place,
                const std::vector<int>& members, std::int64_t bytes, std::int64_t chunk);

  bool advance() override;
  [[nodiscard]] bool done() const override { return done_; }

 private:
  // Another rank, and when each send to it will be over.
  struct Peer {
    int rank = -1;
    SimulatedOperation* operation = nullptr;
    std::vector<Time> sending = {};
  };

  bool move_up();
  bool move_down();
  bool send(Peer& peer, TreeProgress::Flow& flow);
  bool take_sends(Peer& peer, TreeProgress::Flow& flow);
  [[nodiscard]] std::int64_t bytes(std::int64_t chunk) const;

  const std::int64_t bytes_;
  const std::int64_t chunk_;
  const TreePlace place_;
  TreeProgress progress_;
  Peer parent_;
  std::vector<Peer> children_;
  bool done_;
};

// What a host's members do in its memory, one such stage after the other: it is over for all of
// them at the same time, a while after the last one has come.
class HostStages {
 public:
  explicit HostStages(const Settings& settings)
      : costs_(settings.costs), hosts_(static_cast<std::size_t>(settings.hosts)) {}

  // A member of the host begins stage `key` of so many bytes at `at`. Once all `members` have, puts
  // into the timeline when it is over for each of them.
  void begin(Timeline& timeline, int host, int rank, std::size_t members, std::uint64_t key,
             std::int64_t bytes, Time at);

 private:
  struct Open {
    std::uint64_t key;
    Time latest;
    std::vector<int> ranks;
  };
  struct Host {
    Time free;  // its memory
    std::vector<Open> open;
  };

  const Costs costs_;
  std::vector<Host> hosts_;
};

class SimulatedStage final : public SimulatedOperation {
 public:
  SimulatedStage(Fabric& fabric, int rank, std::uint64_t key, HostStages& stages,
                 std::size_t members, std::int64_t bytes);

  bool advance() override;
  [[nodiscard]] bool done() const override { return done_; }

 private:
  bool done_ = false;
};

}  // namespace rueda::simulate
