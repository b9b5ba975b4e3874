// What this rank asks of the owners of tables: requests on their way, and what their answers
// complete. An owner has at most `requests_at_once` of this rank at a time, without those that wait
// for a clock; the rest wait here, and nobody who has asked is held up. What owners send to
// replicas is bounded by what they have room for, and waits for none of the rank's own requests.
//
// Used by the owner of the progress lock only, but for what is said to be for any thread.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/metrics.h"
#include "coordinator/open_handle.h"
#include "coordinator/table_mail.h"
#include "core/clock.h"
#include "core/status.h"
#include "server/direct_part.h"
#include "server/table_message.h"

namespace rueda {

// What a rank keeps of a table as one who asks. Any thread may read it.
struct TableUse {
  static constexpr std::size_t counted = 65;  // stalenesses 0 to 63, and all above

  TableUse(std::uint64_t table_number, std::string table_name, std::size_t ranks)
      : number(table_number), name(std::move(table_name)), seen(ranks), clocks(ranks) {}

  const std::uint64_t number;
  const std::string name;
  // Of each rank of the set: the version of its shard when values of it last came.
  std::vector<std::atomic<std::uint64_t>> seen;
  std::array<std::atomic<std::uint64_t>, counted> staleness{};
  // Of each rank of the set its steps, as this rank has counted them as an owner.
  std::vector<std::atomic<std::int64_t>> clocks;

  // Of each rank of the set the part that this rank works on by itself, or null; while none of its
  // requests is under way that what it does there could overtake.
  std::vector<std::unique_ptr<const DirectPart>> direct{};
  std::atomic<bool> is_direct{false};
  std::atomic<std::int64_t> under_way{0};

  void count_staleness(std::uint64_t met) {
    staleness.at(std::min<std::uint64_t>(met, counted - 1)).fetch_add(1);
  }
};

// One call of the application: a request to each owner that it concerns.
struct TableOperation {
  struct Part {
    int owner = -1;         // world rank
    std::size_t index = 0;  // within the set
    std::int64_t begin = 0;
    std::int64_t count = 0;
    const std::byte* payload = nullptr;  // in `owned`, or the application's
    std::size_t payload_bytes = 0;
    std::vector<std::byte> owned{};
    bool only_ticks = false;  // add: nothing of it is there, but the tick is counted
    float* target = nullptr;  // get: of what comes
    // get of rows: which rows of `out` they are; `target` is unused then.
    std::vector<std::int64_t> positions{};
  };
  std::shared_ptr<TableUse> use;
  TableRequest request;  // of all parts; begin, count, number and payload are each part's own
  std::vector<Part> parts;
  float* out = nullptr;  // get of rows
  std::int64_t width = 1;
  std::shared_ptr<std::vector<std::vector<std::byte>>> results;  // call: of each rank of the set
  OpenHandle handle;

  [[nodiscard]] bool waits_for_clock() const {
    return request.verb == TableVerb::get && request.min_clock > 0;
  }
  // Whether what its rank asks later may not overtake it.
  [[nodiscard]] bool keeps_order() const {
    return request.verb != TableVerb::tick && !waits_for_clock() && !request.is_replica;
  }
  void end(const Status& status) {
    if (keeps_order()) use->under_way.fetch_sub(1);
    handle->complete(status);
  }
};

// When waiting for others is told, and when it fails.
struct TableTimeouts {
  Duration warning;
  Duration error;  // 0: never
};

class TableClient {
 public:
  using Post = std::function<void(int peer, std::span<const std::byte> message)>;
  using HasLeft = std::function<bool(int peer)>;
  static constexpr std::size_t requests_at_once = 64;

  TableClient(PointToPoint& messages, Post post, HasLeft has_left, TableTimeouts timeouts,
              Metrics& metrics)
      : messages_(messages),
        post_(std::move(post)),
        has_left_(std::move(has_left)),
        timeouts_(timeouts),
        metrics_(metrics) {}

  void submit(std::shared_ptr<TableOperation> operation);
  // Of a replica, by its owner: bytes stay until `handle` is done.
  void replicate(int holder, TableRequest request, std::span<const std::byte> payload,
                 std::shared_ptr<HandleState> handle, const std::shared_ptr<TableUse>& use);

  // Returns whether the message was what it has to be.
  bool receive(int peer, std::span<const std::byte> message);
  // Goes on without blocking; returns whether anything moved.
  bool step(Time now);
  // When an owner has been silent for so long that it is told. Nothing fails of that: its bytes
  // may be on their way.
  [[nodiscard]] std::optional<Time> next_deadline() const;

  [[nodiscard]] bool expects() const { return !pending_.empty(); }
  void lose(int rank, const Status& reason);
  // The messages must have been failed.
  void fail_all(const Status& reason);

 private:
  // An operation under way: done with its last part.
  struct Underway {
    std::shared_ptr<TableOperation> operation;
    std::size_t left = 0;  // parts
    Status status;
  };
  struct Pending {
    std::shared_ptr<Underway> underway;
    std::size_t part = 0;
    std::shared_ptr<HandleState> sending{};   // of the payload
    std::shared_ptr<HandleState> arriving{};  // of the answer's
    std::vector<std::byte> arrived{};
    bool is_answered = false;
    TableAnswer answer{};
    Time since{};
    bool is_told = false;
  };

  void start(std::uint64_t number, Pending pending);
  void begin(std::uint64_t number, Pending& pending);
  void take(Pending& pending, std::span<const std::byte> payload);
  void finish(std::uint64_t number);
  void end_part(Underway& underway, const Status& status);
  static TableOperation::Part& part_of(const Pending& pending) {
    return pending.underway->operation->parts[pending.part];
  }
  static bool is_of_replica(const Pending& pending) {
    return pending.underway->operation->request.is_replica;
  }
  // Among those that an owner has at once: what waits for a clock lets others pass there.
  static bool counts(const Pending& pending) {
    return !is_of_replica(pending) && !pending.underway->operation->waits_for_clock();
  }
  [[nodiscard]] bool is_due(const Pending& pending) const;

  PointToPoint& messages_;
  const Post post_;
  const HasLeft has_left_;
  const TableTimeouts timeouts_;
  Metrics& metrics_;
  std::uint64_t next_number_ = 0;
  std::map<std::uint64_t, Pending> pending_;                              // with their owners
  std::map<int, std::deque<std::pair<std::uint64_t, Pending>>> waiting_;  // of each owner
  std::map<int, std::size_t> at_once_;  // of each owner, but for what goes to replicas
};

}  // namespace rueda
