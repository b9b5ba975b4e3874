// How long ranks wait for others to submit a tensor, and what is reported about that. An inner node
// of the tree tells its parent what it has seen of the tensor; the root warns everybody, and in the
// end fails the tensor. Before it does, it asks missing ranks where they are.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"
#include "plan/announced_tensors.h"
#include "plan/inquiry.h"
#include "plan/response.h"
#include "plan/set_naming.h"

namespace rueda {

// How long to wait before anything is reported: until the warning or the error, whichever comes
// first. Zero stands for never, in all three.
[[nodiscard]] Duration until_first_report(Duration warning, Duration error);

class StallWatch {
 public:
  struct Limits {
    Duration warning{};               // zero: never
    std::function<Duration()> error;  // may change at any time; zero or empty: never
    bool asks_whereabouts = false;
  };
  using Waiting = AnnouncedTensor::Waiting;

  // All but the limits must outlive this.
  StallWatch(const Limits& limits, const Tree& tree, AnnouncedTensors& tensors,
             const JoinedRanks& joined, const SetNaming& naming)
      : limits_(limits),
        tree_(tree),
        tensors_(tensors),
        joined_(joined),
        naming_(naming),
        judged_by_(error()) {}

  // The tensor is waited for since then.
  void begin(Waiting& waiting, Time since);
  // There is news of the tensor. What is new since the last report goes up soon, within one
  // interval over all levels. Not immediately, or a node would pass on many single reports.
  void report_soon(Waiting& waiting, Time now);
  // When check() should be called even if nothing happens.
  [[nodiscard]] std::optional<Time> next_deadline() const;
  // Does what is due: returns the root's warnings and errors, or adds an inner node's `reports`.
  [[nodiscard]] ResponseList check(Time now, std::vector<Announcement>& reports);

  // Whom to ask where they are, and the answer of one of them.
  [[nodiscard]] std::vector<int> take_questions() { return inquiry_.take_questions(); }
  void hear_whereabouts(int rank, std::string text, Time now);

 private:
  [[nodiscard]] Duration report_interval() const;
  // The time after which an operation that begins now fails; and one that waits already.
  [[nodiscard]] Duration error() const;
  [[nodiscard]] Duration error_of(const Waiting& waiting) const;
  [[nodiscard]] Time first_report(const Waiting& waiting) const;
  [[nodiscard]] Time later_report(const Waiting& waiting, Time now) const;
  void schedule(Waiting& waiting);
  // error() may have changed. What this rank has submitted before does not fail earlier by that.
  void heed_change();
  [[nodiscard]] std::vector<int> missing_beside(const std::vector<int>& ready) const;
  [[nodiscard]] bool inquire(AnnouncedTensor& tensor, Time now);
  // Adds a warning or errors for what has waited too long.
  void judge(const std::string& name, const AnnouncedTensor& tensor, Time now,
             ResponseList& responses) const;

  const Limits limits_;
  const Tree& tree_;
  AnnouncedTensors& tensors_;
  const JoinedRanks& joined_;
  const SetNaming& naming_;
  Inquiry inquiry_;
  Time next_check_ = Time::max();  // nothing needs to be reported before
  Duration judged_by_;             // error() when that was found out
};

}  // namespace rueda
