// What this rank does for others as the owner of parts of tables: it takes their requests, waits
// for their payloads, works on its shards, and answers.
//
// What one rank asks of one table is done in its order, but for a get() that waits for a clock: it
// lets later ones pass. Requests of different ranks wait for each other only while one is at work
// on the shard. Payloads are taken while there is room for them (`staging_bytes`, or one), and stay
// with the rank that asks until then; values are copied for an answer likewise. So no rank can be
// filled up by others. What owners send to replicas has room and order of its own: it waits for
// nothing that could wait for it.
//
// Used by the owner of the progress lock only.
#pragma once

#include <array>
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

class TableOwner {
 public:
  using Post = std::function<void(int peer, std::span<const std::byte> message)>;
  using HasLeft = std::function<bool(int peer)>;
  static constexpr std::size_t staging_bytes = 16 << 20;

  TableOwner(PointToPoint& messages, TableClient& client, Post post, HasLeft has_left,
             TableTimeouts timeouts, Metrics& metrics)
      : messages_(messages),
        client_(client),
        post_(std::move(post)),
        has_left_(std::move(has_left)),
        timeouts_(timeouts),
        metrics_(metrics) {}

  void open(HeldTable table);
  void close(std::uint64_t number) { tables_.erase(number); }
  // Bytes that others have sent and this rank has not worked on yet, and answers on their way.
  [[nodiscard]] std::size_t staged() const { return staged_[0] + staged_[1]; }

  // Returns whether the message was what it has to be.
  bool receive(int peer, std::span<const std::byte> message, Time now);
  // Goes on without blocking; returns whether anything moved.
  bool step(Time now);

  // Whether something is being worked on, or sent: nobody may leave before.
  [[nodiscard]] bool in_flight() const;
  // When somebody has waited too long for a clock or a turn.
  [[nodiscard]] std::optional<Time> next_deadline() const;
  // The messages with that rank must have been failed.
  void lose(int rank);
  void fail_all();

 private:
  struct Job {
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
  struct Asked {
    int peer = -1;
    Job job;
  };
  struct Table {
    HeldTable held;
    Clocks clocks;
    RingStep step;
    float step_factor = 1;
    Status step_error{};
    Status broken{};  // a step that did not come about: what ranks add does not belong together
    std::int64_t step_done = 0;       // items of the sum that the shard has
    std::vector<Asked> in_step = {};  // what the sum is of
  };
  struct Replicating {
    std::vector<Asked> asked;
    std::vector<std::byte> sum;  // of a step
    std::shared_ptr<HandleState> handle;
    std::uint64_t version = 0;
  };
  struct Departing {
    int peer = -1;
    std::vector<std::byte> bytes;
    std::size_t staged = 0;
    std::shared_ptr<HandleState> sending;
  };
  struct Key {
    std::uint64_t table;
    int peer;
    bool is_replica;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  static Status closed_table();
  [[nodiscard]] Table* find(std::uint64_t number);
  // Goes on with the first of a queue as far as it can; returns whether anything moved.
  bool advance(const Key& key, std::deque<Job>& queue);
  [[nodiscard]] bool waits_for_clock(const Table& table, const Job& job) const;
  [[nodiscard]] bool waits_for_turn(const Table* table, int peer, const Job& job) const;
  [[nodiscard]] bool admit(const Table* table, int peer, Job& job);
  [[nodiscard]] bool has_room(bool is_replica, std::size_t bytes) const;
  void stage(Job& job, std::size_t bytes);
  void unstage(Job& job);
  [[nodiscard]] Status check(const Table& table, int peer, const Job& job) const;
  [[nodiscard]] bool start(Table& table, int peer, Job& job);
  [[nodiscard]] bool prepare(Table& table, int peer, Job& job, const Shard& shard);
  // Whether it is done.
  bool work(Table& table, Job& job);
  bool work_on_values(Table& table, Job& job);
  static void run_function(const Table& table, Job& job);
  static void count_clock(Table& table, int peer, const TableRequest& request);
  void end(Table* table, int peer, Job job);
  void replicate(Table& table, Replicating replicating, const TableRequest& request, float factor);
  void answer(int peer, Job job, std::uint64_t version);
  // Of tables in ring order; see advance().
  bool advance_step(Table& table);
  bool look_at_deferred(Time now);
  bool look_at_steps(Time now);
  void break_steps(Table& table, const Status& why);
  bool finish_replicas();
  bool finish_departures();
  // Additions that have begun shall be whole.
  void finish_begun(Table& table, const Key& key, std::deque<Job>& queue);
  static bool is_step_part(const Table& table, const TableRequest& request);
  static Status refusal_of_step(const Table& table, int peer, const TableRequest& request);
  static Shard* shard_of(const Table& table, const TableRequest& request);
  [[nodiscard]] static Selection selection_of(const Table& table, const Job& job);
  // Of what has waited for too long: told once, and an error in the end.
  [[nodiscard]] Status overdue(Job& job, Time now, const std::function<std::string()>& tell) const;
  static std::string tell_clock(const Table& table, const Asked& asked);
  static std::string tell_turn(const Table& table, int peer);

  PointToPoint& messages_;
  TableClient& client_;
  const Post post_;
  const HasLeft has_left_;
  const TableTimeouts timeouts_;
  Metrics& metrics_;
  std::map<std::uint64_t, Table> tables_;
  std::map<Key, std::deque<Job>> queues_;  // none is empty
  std::list<Asked> deferred_;              // that wait for a clock
  std::list<Replicating> replicating_;
  std::list<Departing> departing_;
  std::optional<Time> look_again_;  // at shards that other ranks have worked on
  // Bytes of payloads and results that are no part of a header; the second: from owners to
  // replicas.
  std::array<std::size_t, 2> staged_{};
};

}  // namespace rueda
