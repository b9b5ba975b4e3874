// A table at its owner, and the requests to it: shard, clocks, the step that is being summed.
//
// Knows what a request does to the shard and what it must wait for; TableOwner handles how requests
// arrive and are answered.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/handle_state.h"
#include "coordinator/table_client.h"
#include "core/clock.h"
#include "core/status.h"
#include "server/clocks.h"
#include "server/ring_step.h"
#include "server/shard.h"
#include "server/table_message.h"

namespace rueda {

// One table as held by one of its ranks.
struct HeldTable {
  std::uint64_t number = 0;
  std::string name{};
  std::vector<int> ranks{};  // world ranks, in the order of the set
  int rank = 0;              // of this rank in the set
  bool in_ring_order = false;
  std::shared_ptr<Shard> own{};
  std::shared_ptr<Shard> replica{};  // of the previous rank's shard; or null
  std::int64_t own_count = 0;        // of a dense table
  std::shared_ptr<TableUse> use{};

  [[nodiscard]] int replica_holder() const {
    return ranks[static_cast<std::size_t>(rank + 1) % ranks.size()];
  }
  [[nodiscard]] int index_of(int world_rank) const;  // -1: not a member
};

// A request and its state.
struct TableJob {
  TableRequest request;
  std::vector<std::byte> payload{};
  std::shared_ptr<HandleState> arriving{};  // receives the payload, once there is room
  bool is_admitted = false;
  bool is_at_work = false;
  Shard::Places places{};     // of the items that room has been reserved for
  std::int64_t reserved = 0;  // items
  std::int64_t done = 0;      // items
  float factor = 1;
  std::uint64_t staleness = 0;
  std::uint64_t version = 0;  // of the shard, once the job is done
  std::vector<std::byte> result{};
  std::size_t staged = 0;  // bytes counted against the owner's limit
  Status status{};
  Time since{};
  bool is_told = false;  // a warning about its long wait was issued
};

struct AskedOfTable {
  int peer = -1;
  TableJob job;
};

class ServedTable {
 public:
  explicit ServedTable(HeldTable table);

  HeldTable held;
  Clocks clocks;

  // --- Requests

  // Checks what can be checked from a request's header.
  [[nodiscard]] Status check(int peer, const TableRequest& request) const;
  // Whether it is an addition in ring order.
  [[nodiscard]] bool is_step_part(const TableRequest& request) const {
    return held.in_ring_order && request.verb == TableVerb::add && !request.is_replica;
  }
  // Why such an addition cannot be part of a step; ok if it can.
  [[nodiscard]] Status refusal_of_step(int peer, const TableRequest& request) const;
  [[nodiscard]] bool waits_for_clock(const TableJob& job) const;
  [[nodiscard]] bool waits_for_turn(int peer, const TableJob& job) const;
  // Descriptions, for messages, of what these two wait for.
  [[nodiscard]] std::string tell_clock(const AskedOfTable& asked) const;
  [[nodiscard]] std::string tell_turn(int peer) const;

  // --- Work on the shard, which must have been acquired

  [[nodiscard]] Shard& shard_of(const TableRequest& request) const {
    return request.is_replica ? *held.replica : *held.own;
  }
  // Before any work. Errors are put into the job's status.
  void prepare(int peer, TableJob& job);
  // Size of the job's result.
  [[nodiscard]] std::size_t result_bytes(const TableRequest& request) const;
  // Does the next piece. Returns whether the job is done and the shard released.
  bool work(TableJob& job);
  // The job is done: counts what it says about the peer's steps.
  void count_clock(int peer, const TableRequest& request);
  // The rank takes no more steps.
  void finish(int rank);

  // --- Ring order

  RingStep step;
  float step_factor = 1;
  Status step_error{};
  Status broken{};  // error of a failed step: it is no longer known which additions belong together
  std::int64_t step_done = 0;              // items of the sum that have been added to the shard
  std::vector<AskedOfTable> in_step = {};  // the additions in the sum
  // A step has failed with this error, which some ranks may know and others may not have begun.
  // Returns the error of all further additions.
  Status take_no_more(const Status& why);
  // Adds the next piece of the sum to the shard. Returns whether that was the last.
  bool work_on_step();

 private:
  [[nodiscard]] Selection selection_of(const TableJob& job) const;
  bool work_on_values(TableJob& job);
  void run_function(TableJob& job) const;
};

}  // namespace rueda
