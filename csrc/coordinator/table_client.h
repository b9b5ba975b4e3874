// This rank's requests to the owners of tables, and what their answers complete. An owner has at
// most `requests_at_once` of this rank's requests at a time, not counting those that wait for a
// clock; the rest wait here without blocking the callers. What owners send to replicas is bounded
// by the owners' room, and waits for none of the rank's own requests.
//
// Used only by the owner of the progress lock, except where marked as being for any thread.
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

// A client's state of a table. Any thread may read it.
struct TableUse {
  static constexpr std::size_t counted = 65;  // staleness 0 to 63, and everything above

  TableUse(std::uint64_t table_number, std::string table_name, std::size_t ranks)
      : number(table_number), name(std::move(table_name)), seen(ranks), clocks(ranks) {}

  const std::uint64_t number;
  const std::string name;
  // For each rank of the set: the version of its shard when values of it last arrived.
  std::vector<std::atomic<std::uint64_t>> seen;
  std::array<std::atomic<std::uint64_t>, counted> staleness{};
  // For each rank of the set: its steps, as this rank has counted them as an owner.
  std::vector<std::atomic<std::int64_t>> clocks;

  // For each rank of the set: the shard that this rank accesses directly, or null; used only while
  // none of its requests is in flight that a direct access could overtake.
  std::vector<std::unique_ptr<const DirectPart>> direct{};
  std::atomic<bool> is_direct{false};
  std::atomic<std::int64_t> under_way{0};

  void count_staleness(std::uint64_t met) {
    staleness.at(std::min<std::uint64_t>(met, counted - 1)).fetch_add(1);
  }
};

// One call of the application: a request to each owner concerned.
struct TableOperation {
  struct Part {
    int owner = -1;         // world rank
    std::size_t index = 0;  // within the set
    std::int64_t begin = 0;
    std::int64_t count = 0;
    const std::byte* payload = nullptr;  // in `owned`, or the application's memory
    std::size_t payload_bytes = 0;
    std::vector<std::byte> owned{};
    bool only_ticks = false;  // add: adds nothing there, but the tick is counted
    float* target = nullptr;  // get: destination of the values
    // get of rows: which rows of `out` these are; `target` is then unused.
    std::vector<std::int64_t> positions{};
  };
  std::shared_ptr<TableUse> use;
  TableRequest request;  // of all parts; begin, count, number and payload differ per part
  std::vector<Part> parts;
  float* out = nullptr;  // get of rows
  std::int64_t width = 1;
  std::shared_ptr<std::vector<std::vector<std::byte>>> results;  // call: for each rank of the set
  OpenHandle handle;

  [[nodiscard]] bool waits_for_clock() const {
    return request.verb == TableVerb::get && request.min_clock > 0;
  }
  // Whether later requests of its rank may not overtake it.
  [[nodiscard]] bool keeps_order() const {
    return request.verb != TableVerb::tick && !waits_for_clock() && !request.is_replica;
  }
  void end(const Status& status) {
    if (keeps_order()) use->under_way.fetch_sub(1);
    handle->complete(status);
  }
};

// How long a wait for other ranks lasts before a warning, and before it fails.
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
  // Sends an owner's change to its replica: the bytes must live until `handle` is done.
  void replicate(int holder, TableRequest request, std::span<const std::byte> payload,
                 std::shared_ptr<HandleState> handle, const std::shared_ptr<TableUse>& use);

  // Returns whether the message was well-formed.
  bool receive(int peer, std::span<const std::byte> message);
  // Advances without blocking; returns whether anything moved.
  bool step(Time now);
  // When to warn that an owner has been silent for long. Nothing fails because of that: its bytes
  // may be in flight.
  [[nodiscard]] std::optional<Time> next_deadline() const;

  [[nodiscard]] bool expects() const { return !pending_.empty(); }
  void lose(int rank, const Status& reason);
  // The messages must have been failed before.
  void fail_all(const Status& reason);

 private:
  // An operation in progress: done when its last part is.
  struct Underway {
    std::shared_ptr<TableOperation> operation;
    std::size_t left = 0;  // parts
    Status status;
  };
  struct Pending {
    std::shared_ptr<Underway> underway;
    std::size_t part = 0;
    std::shared_ptr<HandleState> sending{};   // sends the payload
    std::shared_ptr<HandleState> arriving{};  // receives the answer's payload
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
  // Whether it counts towards `requests_at_once`: the owner lets others pass a request that waits
  // for a clock.
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
  std::map<std::uint64_t, Pending> pending_;                              // sent to their owners
  std::map<int, std::deque<std::pair<std::uint64_t, Pending>>> waiting_;  // of each owner
  std::map<int, std::size_t> at_once_;  // per owner, without those to replicas
};

}  // namespace rueda
