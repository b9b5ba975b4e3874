// Asks ranks that others wait for where they are, before a stall is reported, and puts their
// answers together. Pure: rank numbers and the time go in; whom to ask and a text come out.
//
// A report waits for the answers, but not for long: a rank may be stopped, or its machine gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"

namespace rueda {

class Inquiry {
 public:
  // How many ranks are asked for one report: the first of those that are missing. If many are
  // missing, the others are mostly at the same place.
  static constexpr std::size_t max_asked = 8;
  // How long a report waits for them.
  static constexpr Duration timeout = std::chrono::seconds(1);

  // Starts a report on `missing` (sorted). Returns until when to wait for answers; empty if they
  // were given a moment ago, for another report. Does not disturb reports that still wait.
  std::optional<Time> begin(std::span<const int> missing, Time now);
  // Whom to ask now.
  [[nodiscard]] std::vector<int> take_questions() { return std::exchange(questions_, {}); }
  // A rank's answer: what follows "rank 2 is", or empty if it cannot tell. Returns whether it was
  // the last one that was waited for.
  bool hear(int rank, std::string text, Time now);

  // E.g. "; rank 2 is at train.py:41 in load; ranks 3 and 5 are at train.py:80 in step"; empty if
  // no rank can tell. `describe` formats ranks for people.
  [[nodiscard]] std::string report(
      std::span<const int> missing, Time now,
      const std::function<std::string(const std::vector<int>&)>& describe) const;

 private:
  struct Answer {
    Time asked;
    std::optional<std::string> text;
    // Its previous answer, for reports that began then: they must not lose it because another
    // report asks again.
    std::optional<std::string> earlier;

    // The answer, or the previous one while a new one is awaited; null if there is none.
    [[nodiscard]] const std::string* said(Time now) const;
  };
  [[nodiscard]] static std::span<const int> asked_of(std::span<const int> missing);
  [[nodiscard]] bool is_settled(Time now) const;

  std::map<int, Answer> answers_;  // the last answer of each rank that was ever asked
  std::vector<int> questions_;
};

// The messages: a question about a process set, and the answer, which is one short line.
[[nodiscard]] std::vector<std::byte> encode_whereabouts_question(int set_id);
[[nodiscard]] std::optional<int> decode_whereabouts_question(std::span<const std::byte> bytes);
struct WhereaboutsAnswer {
  int set_id = 0;
  std::string text;
};
inline constexpr std::size_t max_whereabouts = 1000;  // bytes of text; longer ones are cut
[[nodiscard]] std::vector<std::byte> encode(const WhereaboutsAnswer& answer);
[[nodiscard]] std::optional<WhereaboutsAnswer> decode_whereabouts_answer(
    std::span<const std::byte> bytes);

}  // namespace rueda
