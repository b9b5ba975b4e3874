// How processes of one host come to share files without names: rank 0 listens on a socket, the
// other ranks call it, and descriptors travel over the connections.
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

// As many as one message carries; the kernel's limit is little more.
inline constexpr std::size_t descriptors_per_message = 240;

// One message with these descriptors, at least one and at most descriptors_per_message.
Status send_descriptors(int socket, std::span<const int> fds, Time deadline);
// The message with `count` descriptors. All in `what` go into errors: "the shared memory".
[[nodiscard]] Expected<std::vector<UniqueFd>> receive_descriptors(int socket, std::size_t count,
                                                                  const std::string& what,
                                                                  Time deadline);

// Rank `rank` calls rank 0, which listens at `address`. `world` is a random word that only ranks of
// this world know.
[[nodiscard]] Expected<UniqueFd> call_rank_zero(const std::string& address,
                                                const std::string& world, int rank);

// Rank 0's part: answers a call of each rank 1 to size - 1. `answer` says false where the
// conversation failed; the rank may call again. `what` they come for goes into the error. Others
// that connect are closed, and keep nobody waiting. Ends at the deadline whatever comes
// (ErrorCode::initialization); `answer` keeps to it by itself.
Status answer_calls(int listener, const std::string& world, int size, const std::string& what,
                    Time deadline, const std::function<bool(int rank, UniqueFd socket)>& answer);

}  // namespace rueda
