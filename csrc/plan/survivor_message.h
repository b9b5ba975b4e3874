// What members of an epoch that broke tell each other, and its encoding (see SurvivorAgreement).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/status.h"
#include "plan/survivor_choice.h"

namespace rueda {

// How a member was lost. `ended`: its process is gone for good. `unreachable`: it is silent, and
// may be alive.
enum class Loss : std::uint8_t { ended, unreachable };

// A world that was decided on and given up. Others may have formed it nevertheless, if all its
// members have decided on it.
struct GivenUp {
  std::uint64_t epoch = 0;  // the highest number that it had
  std::set<int> decided;    // the members that are known to have decided on it
};

// Everything that the sender knows.
struct SurvivorView {
  std::uint64_t epoch = 0;     // that broke
  std::uint64_t proposal = 0;  // the number of the epoch that is to be formed
  bool knows_nothing = false;  // of the receiver, which has sent the sender no view yet
  bool is_answer = false;      // and needs no answer itself
  std::map<int, Status> ended;
  std::map<BrokenLink, Status> broken;
  std::map<std::vector<int>, GivenUp> given_up;  // by their members
  // The highest proposal that each member is known to have made, or `proposal`. Everything that it
  // decided on before is known, too.
  std::map<int, std::uint64_t> reached;
};

// The answer to a message of an epoch that has a successor.
struct EpochHasGoneOn {
  std::uint64_t epoch = 0;  // the one that was formed
  std::vector<int> members;
  Status cause;  // why the receiver is not a member, if the sender knows
};

using SurvivorMessage = std::variant<SurvivorView, EpochHasGoneOn>;

[[nodiscard]] std::vector<std::byte> encode(const SurvivorMessage& message);
// Empty for what encode() never makes.
[[nodiscard]] std::optional<SurvivorMessage> decode_survivor_message(
    std::span<const std::byte> bytes);

// In one line, for the log.
[[nodiscard]] std::string describe_survivor_message(std::span<const std::byte> bytes);

// `cause` as one line of at most 1000 bytes, so that messages stay small: they contain one per lost
// member.
[[nodiscard]] Status shortened(const Status& cause);

}  // namespace rueda
