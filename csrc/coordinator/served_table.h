// A table at its owner, and what others ask of it: shard, clocks, the step that is being added up.
//
// Knows what a request does to the shard and what it has to wait for, not how it comes and is
// answered: that is TableOwner's.
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

// One table as one of its ranks holds it.
struct HeldTable {
  std::uint64_t number = 0;
  std::string name{};
  std::vector<int> ranks{};  // of the world, in the order of the set
  int rank = 0;              // of this one in the set
  bool in_ring_order = false;
  std::shared_ptr<Shard> own{};
  std::shared_ptr<Shard> replica{};  // of the shard of the previous rank of the set; or null
  std::int64_t own_count = 0;        // of a dense table
  std::shared_ptr<TableUse> use{};

  [[nodiscard]] int replica_holder() const {
    return ranks[static_cast<std::size_t>(rank + 1) % ranks.size()];
  }
  [[nodiscard]] int index_of(int world_rank) const;  // -1: no member
};

// A request, and how far it has come.
struct TableJob {
  TableRequest request;
  std::vector<std::byte> payload{};
  std::shared_ptr<HandleState> arriving{};  // of the payload, once there is room
  bool is_admitted = false;
  bool is_at_work = false;
  Shard::Places places{};     // of the items that there is room for
  std::int64_t reserved = 0;  // items
  std::int64_t done = 0;      // items
  float factor = 1;
  std::uint64_t staleness = 0;
  std::uint64_t version = 0;  // of the shard, once it is done
  std::vector<std::byte> result{};
  std::size_t staged = 0;  // bytes that are counted
  Status status{};
  Time since{};
  bool is_told = false;  // that it has waited for long
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

  // What is wrong with one, as far as its header tells.
  [[nodiscard]] Status check(int peer, const TableRequest& request) const;
  // Whether it is an addition in the order of the ring.
  [[nodiscard]] bool is_step_part(const TableRequest& request) const {
    return held.in_ring_order && request.verb == TableVerb::add && !request.is_replica;
  }
  // What such an addition cannot be part of.
  [[nodiscard]] Status refusal_of_step(int peer, const TableRequest& request) const;
  [[nodiscard]] bool waits_for_clock(const TableJob& job) const;
  [[nodiscard]] bool waits_for_turn(int peer, const TableJob& job) const;
  // For people: what these two wait for.
  [[nodiscard]] std::string tell_clock(const AskedOfTable& asked) const;
  [[nodiscard]] std::string tell_turn(int peer) const;

  // --- Work on the shard, which must have been acquired

  [[nodiscard]] Shard& shard_of(const TableRequest& request) const {
    return request.is_replica ? *held.replica : *held.own;
  }
  // Before any work. What is wrong is in the job's status.
  void prepare(int peer, TableJob& job);
  // Bytes of what the job's result is.
  [[nodiscard]] std::size_t result_bytes(const TableRequest& request) const;
  // The next piece. Whether the job is done, and the shard released.
  bool work(TableJob& job);
  // The job is done: what it says about the peer's steps.
  void count_clock(int peer, const TableRequest& request);
  // The rank does no more steps.
  void finish(int rank);

  // --- The order of the ring

  RingStep step;
  float step_factor = 1;
  Status step_error{};
  Status broken{};  // a step that did not come about: what ranks add does not belong together
  std::int64_t step_done = 0;              // items of the sum that the shard has
  std::vector<AskedOfTable> in_step = {};  // what the sum is of
  // Adds the next piece of the sum to the shard. Whether that was the last.
  bool work_on_step();

 private:
  [[nodiscard]] Selection selection_of(const TableJob& job) const;
  bool work_on_values(TableJob& job);
  void run_function(TableJob& job) const;
};

}  // namespace rueda
