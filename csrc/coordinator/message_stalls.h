// Reports messages between two ranks that have waited for the other side for too long, with the
// place where its application is. Says nothing about messages of Rueda's own.
//
// A message is reported once it has waited for the time given, and again each time that this has
// doubled: a rank that serves others may wait for their messages for long. It never fails.
//
// Used only by the owner of the progress lock.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/clock.h"
#include "plan/inquiry.h"
#include "rueda/types.h"

namespace rueda {

// In a question where a rank's application is: it is asked on behalf of no process set.
inline constexpr int message_stalls_set = -3;

// One side of a message whose other side has not come.
struct WaitingMessage {
  bool is_send = false;
  bool may_wait_long = false;  // then it is not reported
  std::uint8_t reports = 0;    // so far
  DataType dtype = DataType::float32;
  int set_id = 0;
  int peer = -1;  // world rank; -1: any
  std::int64_t tag = 0;
  std::int64_t count = 0;  // in elements
  Time since{};            // Time{}: it is not reported
};

class MessageStalls {
 public:
  struct Actions {
    std::function<void(int peer)> ask;  // where its application is, see hear()
    std::function<void(const std::string& report)> warn;
  };

  // `patience`: how long a message waits before it is reported; zero: it never is.
  MessageStalls(int rank, Duration patience, Actions actions)
      : rank_(rank), patience_(patience), actions_(std::move(actions)) {}

  // A message begins to wait.
  void begin(WaitingMessage& message);
  [[nodiscard]] std::optional<Time> next_look() const { return next_look_; }
  [[nodiscard]] bool is_due(Time now) const { return next_look_ && now >= *next_look_; }
  // Reports what is due; `waiting`: all messages that wait now.
  void look(Time now, std::span<WaitingMessage* const> waiting);
  // Where a rank's application is; empty if it cannot tell.
  void hear(int peer, std::string place, Time now);

 private:
  struct Report {
    int peer = -1;
    std::string text;
    Time end{};  // of the wait for its place
  };
  [[nodiscard]] Time next_report(const WaitingMessage& message) const;
  [[nodiscard]] std::string describe(const WaitingMessage& message, std::size_t others,
                                     Time now) const;
  void send_reports(Time now);

  const int rank_;
  const Duration patience_;
  const Actions actions_;
  Inquiry inquiry_;
  std::vector<Report> reports_;  // that wait for the peer's answer
  std::optional<Time> next_look_;
};

}  // namespace rueda
