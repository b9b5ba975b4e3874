// Asks ranks that others wait for where they are, before that is reported, and puts together what
// they say. Pure: numbers of ranks and the time go in, whom to ask and a text come out.
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
  // So many ranks are asked for one report, the first of those that are missing. Where many are
  // missing the others are mostly at the same place.
  static constexpr std::size_t max_asked = 8;
  // A report waits so long for them.
  static constexpr Duration timeout = std::chrono::seconds(1);

  // For a report on `missing`, which are sorted: until when to wait for answers. Nothing where they
  // were given a moment ago, for another report. Leaves alone what other reports still wait for.
  std::optional<Time> begin(std::span<const int> missing, Time now);
  // Whom to ask now.
  [[nodiscard]] std::vector<int> take_questions() { return std::exchange(questions_, {}); }
  // What a rank has said: what follows "rank 2 is", or nothing where it cannot tell. Returns
  // whether it was the last one that was waited for.
  bool hear(int rank, std::string text, Time now);

  // E.g. "; rank 2 is at train.py:41 in load; ranks 3 and 5 are at train.py:80 in step"; empty
  // where no rank can tell. `describe`: ranks as people write them.
  [[nodiscard]] std::string report(
      std::span<const int> missing, Time now,
      const std::function<std::string(const std::vector<int>&)>& describe) const;

 private:
  struct Answer {
    Time asked;
    std::optional<std::string> text;
    // What it said when it was asked before, for reports that began then: they must not lose it
    // because another one asks anew.
    std::optional<std::string> earlier;

    // Null where there is no answer, and time to give one was enough or is not.
    [[nodiscard]] const std::string* said(Time now) const;
  };
  [[nodiscard]] static std::span<const int> asked_of(std::span<const int> missing);
  [[nodiscard]] bool is_settled(Time now) const;

  std::map<int, Answer> answers_;  // by rank: of whom was ever asked, the last one
  std::vector<int> questions_;
};

// The messages: about which process set; and the answer to that. An answer is short and one line.
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
