// Whether a stream's path counts as cut. Pure: judges by what the system reports about it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/clock.h"

namespace rueda {

// Idle: nothing is in flight. Silent: something is, and no answer has come for a long time.
enum class StreamSilence : std::uint8_t { idle, answered, silent };

struct StreamAnswers {
  bool awaits_any = false;     // an acknowledgement, of data or of a probe
  Duration since_last{};       // answer, including those for earlier data
  Duration since_first_due{};  // when something was written and nothing else was in flight
  Duration round_trip{};
  Duration resending_after{};  // TCP's delay before its first retransmission
};

// After a pause the last answer is old although none was due. And a single lost packet does not
// mean a cut link, so TCP gets the time to retransmit it and receive the answer.
inline StreamSilence silence_of(const StreamAnswers& answers, Duration timeout) {
  if (!answers.awaits_any) return StreamSilence::idle;
  const Duration silent = std::min(answers.since_last, answers.since_first_due);
  const Duration limit = std::max({timeout, 4 * answers.round_trip, 2 * answers.resending_after});
  return silent > limit ? StreamSilence::silent : StreamSilence::answered;
}

}  // namespace rueda
