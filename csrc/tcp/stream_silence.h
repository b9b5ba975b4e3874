// Whether a stream is to be taken for one whose way is cut: pure, of what the system tells of it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/clock.h"

namespace rueda {

// Idle: nothing is under way. Silent: something is, and no answer has come for long.
enum class StreamSilence : std::uint8_t { idle, answered, silent };

struct StreamAnswers {
  bool awaits_any = false;     // something that was sent is not acknowledged
  Duration since_last{};       // answer, of whatever was sent before as well
  Duration since_first_due{};  // when something was written and nothing else was under way
  Duration round_trip{};
  Duration resending_after{};  // what TCP itself waits before it sends again for the first time
};

// After a pause the last answer is old though the network owes none; and one packet that was lost
// is no cut link, so that TCP has the time to send it again and hear of it.
inline StreamSilence silence_of(const StreamAnswers& answers, Duration timeout) {
  if (!answers.awaits_any) return StreamSilence::idle;
  const Duration silent = std::min(answers.since_last, answers.since_first_due);
  const Duration patience =
      std::max({timeout, 4 * answers.round_trip, 2 * answers.resending_after});
  return silent > patience ? StreamSilence::silent : StreamSilence::answered;
}

}  // namespace rueda
