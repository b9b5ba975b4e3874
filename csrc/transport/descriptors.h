// Shares files without names between processes of one host: rank 0 listens on a socket, the other
// ranks connect to it, and descriptors travel over the connections.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "core/unique_fd.h"

namespace rueda {

// As many as one message carries; the kernel's limit is slightly higher.
inline constexpr std::size_t descriptors_per_message = 240;

// Sends these descriptors, at least one and at most descriptors_per_message, in one message.
Status send_descriptors(int socket, std::span<const int> fds, Time deadline);
// Receives `count` descriptors in one message. `what` appears in errors: "the shared memory".
[[nodiscard]] Expected<std::vector<UniqueFd>> receive_descriptors(int socket, std::size_t count,
                                                                  const std::string& what,
                                                                  Time deadline);

// Connects rank `rank` to rank 0, which listens at `address`. `world` is a random word that only
// ranks of this world know.
[[nodiscard]] Expected<UniqueFd> call_rank_zero(const std::string& address,
                                                const std::string& world, int rank);

// Rank 0's part: answers one call from each of ranks 1 to size - 1. `answer` returns false if the
// exchange failed; the rank may then call again. `what` they come for appears in the error. Other
// connections are closed and delay nobody. Ends at the deadline in any case
// (ErrorCode::initialization); `answer` must keep to it itself.
Status answer_calls(int listener, const std::string& world, int size, const std::string& what,
                    Time deadline, const std::function<bool(int rank, UniqueFd socket)>& answer);

}  // namespace rueda
