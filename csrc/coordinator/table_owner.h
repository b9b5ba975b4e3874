// What this rank does for others as the owner of parts of tables: it takes their requests, waits
// for their payloads, works on its shards, and answers.
//
// What one rank asks of one table is done in its order, but for a get() that waits for a clock: it
// lets later ones pass. Requests of different ranks wait for each other only while one is at work
// on the shard. Payloads are taken while there is room for them (`staging_bytes`, or one), and stay
// with the rank that asks until then; so no rank can be filled up by others.
//
// Used by the owner of the progress lock only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/table_client.h"
#include "coordinator/table_mail.h"
#include "core/clock.h"
#include "core/status.h"
#include "server/clocks.h"
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

// When waiting for a clock is told, and when it fails.
struct TablePatience {
  Duration warning;
  Duration error;  // 0: never
};

class TableOwner {
 public:
  using Post = std::function<void(int peer, std::span<const std::byte> message)>;
  using HasLeft = std::function<bool(int peer)>;
  static constexpr std::size_t staging_bytes = 64 << 20;

  TableOwner(PointToPoint& messages, TableClient& client, Post post, HasLeft has_left,
             TablePatience patience)
      : messages_(messages),
        client_(client),
        post_(std::move(post)),
        has_left_(std::move(has_left)),
        patience_(patience) {}

  void open(HeldTable table);
  void close(std::uint64_t number) { tables_.erase(number); }

  // Returns whether the message was what it has to be.
  bool receive(int peer, std::span<const std::byte> message, Time now);
  // Goes on without blocking; returns whether anything moved.
  bool step(Time now);

  // Whether something is being worked on, or sent: nobody may leave before.
  [[nodiscard]] bool in_flight() const { return !queues_.empty() || !departing_.empty(); }
  // When somebody has waited too long for a clock.
  [[nodiscard]] std::optional<Time> next_deadline() const;
  // The messages with that rank must have been failed.
  void lose(int rank);
  void fail_all();

 private:
  struct Table {
    HeldTable held;
    Clocks clocks;
    std::vector<float> step_sum{};  // in ring order: of those that had their turn
    std::size_t turn = 0;
  };
  struct Job {
    TableRequest request;
    std::vector<std::byte> payload{};
    std::shared_ptr<HandleState> arriving{};  // of the payload, once there is room
    bool is_admitted = false;
    bool is_at_work = false;
    std::int64_t done = 0;  // items
    float factor = 1;
    std::uint64_t staleness = 0;
    std::vector<std::byte> result{};
    Status status{};
    Time since{};
  };
  struct Deferred {  // a get that waits for a clock
    int peer = -1;
    Job job;
    bool is_told = false;
  };
  struct Replicating {
    int peer = -1;
    Job job;
    std::shared_ptr<HandleState> handle;
    std::uint64_t version = 0;
  };
  struct Departing {
    int peer = -1;
    std::vector<std::byte> bytes;
    std::shared_ptr<HandleState> sending;
  };
  using Key = std::pair<std::uint64_t, int>;  // table, peer

  // Goes on with the first of a queue as far as it can; returns whether anything moved.
  bool advance(const Key& key, std::deque<Job>& queue);
  [[nodiscard]] bool admit(Table* table, int peer, Job& job);
  [[nodiscard]] Status check(const Table& table, int peer, const Job& job) const;
  void start(Table& table, Job& job);
  // Whether it is done.
  bool work(Table& table, int peer, Job& job);
  void work_in_ring_order(Table& table, Job& job, std::int64_t to);
  void run_function(Table& table, Job& job) const;
  void end(Table* table, int peer, Job job);
  void answer(int peer, Job job, std::uint64_t version);
  bool look_at_deferred(Time now);
  bool finish_replicas();
  Shard* shard_of(const Table& table, const TableRequest& request) const;
  [[nodiscard]] Selection selection_of(const Table& table, const Job& job) const;
  [[nodiscard]] std::string tell_wait(const Table& table, const Deferred& deferred) const;

  PointToPoint& messages_;
  TableClient& client_;
  const Post post_;
  const HasLeft has_left_;
  const TablePatience patience_;
  std::map<std::uint64_t, Table> tables_;
  std::map<Key, std::deque<Job>> queues_;  // none is empty
  std::list<Deferred> deferred_;
  std::list<Replicating> replicating_;
  std::list<Departing> departing_;
  std::size_t staged_ = 0;  // bytes of payloads and results that are no part of a header
};

}  // namespace rueda
