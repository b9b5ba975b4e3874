// This rank as the owner of shards: it takes requests, waits for their payloads, works on its
// shards, and answers.
//
// Requests of one rank to one table are carried out in order, except that a get() that waits for a
// clock lets later ones pass. Requests of different ranks wait for each other only while one is
// working on the shard. Payloads are accepted while there is room (`staging_bytes`, or one
// payload), and stay with the requesting rank until then; the same limit applies to values copied
// for answers. So other ranks cannot exhaust a rank's memory. What owners send to replicas has its
// own room and order: it waits for nothing that could wait for it.
//
// Used only by the owner of the progress lock.
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

#include "coordinator/served_table.h"
#include "coordinator/table_client.h"
#include "coordinator/table_mail.h"
#include "core/clock.h"
#include "core/status.h"
#include "server/table_message.h"

namespace rueda {

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
  // Its requests that are not answered yet are refused.
  void close(std::uint64_t number);
  // Bytes received and not yet processed, plus answers being sent.
  [[nodiscard]] std::size_t staged() const { return staged_[0] + staged_[1]; }

  // Returns whether the message was well-formed.
  bool receive(int peer, std::span<const std::byte> message, Time now);
  // Advances without blocking; returns whether anything moved.
  bool step(Time now);

  // Whether something is being processed or sent: the rank may not leave before.
  [[nodiscard]] bool in_flight() const;
  // When a request will have waited too long for a clock or a turn.
  [[nodiscard]] std::optional<Time> next_deadline() const;
  // The messages with that rank must have been failed before.
  void lose(int rank);
  void fail_all();

 private:
  struct Replicating {
    std::vector<AskedOfTable> asked;
    std::vector<std::byte> sum;  // sum of a step
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
  [[nodiscard]] ServedTable* find(std::uint64_t number);
  // Advances the first of a queue as far as possible; returns whether anything moved.
  bool advance(const Key& key, std::deque<TableJob>& queue);
  [[nodiscard]] bool admit(const ServedTable* table, int peer, TableJob& job);
  [[nodiscard]] bool has_room(bool is_replica, std::size_t bytes) const;
  void stage(TableJob& job, std::size_t bytes);
  void unstage(TableJob& job);
  [[nodiscard]] bool start(ServedTable& table, int peer, TableJob& job);
  // False if there is no room.
  [[nodiscard]] bool make_room_for_result(TableJob& job, std::size_t bytes);
  void end(ServedTable* table, int peer, TableJob job);
  void replicate(ServedTable& table, Replicating replicating, const TableRequest& request,
                 float factor);
  void answer(int peer, TableJob job, std::uint64_t version);
  // For tables in ring order; see advance().
  bool advance_step(ServedTable& table);
  bool look_at_deferred(Time now);
  bool look_at_steps(Time now);
  void refuse_step(ServedTable& table, const Status& why);
  bool finish_replicas();
  bool finish_departures();
  // Completes additions that have begun.
  void finish_begun(ServedTable& table, const Key& key, std::deque<TableJob>& queue);
  // Handles a job that has waited too long: a warning once, and an error in the end.
  [[nodiscard]] Status overdue(TableJob& job, Time now,
                               const std::function<std::string()>& tell) const;

  PointToPoint& messages_;
  TableClient& client_;
  const Post post_;
  const HasLeft has_left_;
  const TableTimeouts timeouts_;
  Metrics& metrics_;
  std::map<std::uint64_t, ServedTable> tables_;
  std::map<Key, std::deque<TableJob>> queues_;  // none is empty
  std::list<AskedOfTable> deferred_;            // waiting for a clock
  std::list<Replicating> replicating_;
  std::list<Departing> departing_;
  std::optional<Time> look_again_;  // at shards that other ranks access directly
  // Bytes of payloads and results that do not travel with a header; the second: from owners to
  // replicas.
  std::array<std::size_t, 2> staged_{};
};

}  // namespace rueda
