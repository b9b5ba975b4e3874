#include "membership/descriptor_limit.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "core/strings.h"
#include "core/unique_fd.h"

namespace rueda {

namespace {

// Connections, shared memory and wake-ups for each rank of the host: rank 0 holds 7.3.
constexpr rlim_t per_rank = 8;
constexpr rlim_t for_itself = 32;
// Some streams, and over each interface the control lane and the membership, in both directions.
constexpr rlim_t streams_per_remote_rank = 8;
constexpr rlim_t per_interface = 4;

rlim_t open_now() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  return error ? 0 : static_cast<rlim_t>(std::distance(begin(files), end(files)));
}

}  // namespace

Status provide_descriptors(int local_size) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  const rlim_t wanted = open_now() + for_itself + per_rank * static_cast<rlim_t>(local_size);
  if (wanted <= limit.rlim_cur) return {};  // RLIM_INFINITY is the largest value
  if (wanted <= limit.rlim_max) {
    limit.rlim_cur = wanted;
    if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) return {};
  }
  return Status(ErrorCode::initialization,
                str(local_size, " ranks on this host need ", wanted,
                    " open files in each process, and the limit is ", limit.rlim_max,
                    ": raise it (ulimit -Hn ", wanted, ") or start fewer ranks"));
}

void provide_remote_descriptors(int local_size, int remote_size, std::size_t interfaces) {
  rlimit limit{};
  if (remote_size == 0 || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted =
      open_now() + for_itself + per_rank * static_cast<rlim_t>(local_size) +
      (streams_per_remote_rank + per_interface * interfaces) * static_cast<rlim_t>(remote_size);
  if (wanted <= limit.rlim_cur) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void grow_descriptor_table(int local_size) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t open = open_now();
  // Leaves room for what the application opens meanwhile.
  const rlim_t worlds = 2 * (for_itself + per_rank * static_cast<rlim_t>(local_size));
  const rlim_t wanted = std::min(limit.rlim_cur, 2 * open + worlds);
  const UniqueFd own(::open("/proc/self", O_PATH | O_CLOEXEC));
  const UniqueFd last(::fcntl(own.get(), F_DUPFD_CLOEXEC, static_cast<int>(wanted) - 1));
}

}  // namespace rueda
