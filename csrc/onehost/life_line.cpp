#include "onehost/life_line.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>

#include "core/futex.h"
#include "core/signals_blocked.h"
#include "core/unique_fd.h"

namespace rueda {

namespace {

// Younger than headers may be.
constexpr unsigned close_range_unshare = 2;  // of <linux/close_range.h>
constexpr long close_range_number = 436;     // on all architectures

struct LifeLine {
  pid_t process;
  UniqueFd reader;
  const LifeLine* before;  // of the process that this one was forked from
};

std::atomic<const LifeLine*> newest_life_line{nullptr};

enum HolderOutcome : std::uint32_t { starting, holding, unable };

// Leaves this thread a table of descriptors of its own, with none but `kept` in it.
bool keep_only(unsigned kept) {
  if (::syscall(close_range_number, kept + 1, ~0U, close_range_unshare) != 0) return false;
  return kept == 0 || ::syscall(close_range_number, 0U, kept - 1, 0U) == 0;
}

using HolderState = std::shared_ptr<std::atomic<std::uint32_t>>;

void hold_life_line(int writer, const HolderState& state) {
  pthread_setname_np(pthread_self(), "rueda-alive");
  const bool alone = keep_only(static_cast<unsigned>(writer));
  state->store(alone ? holding : unable);
  futex_wake_all(*state);
  while (alone) ::pause();
}

UniqueFd start_life_line() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return {};
  UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  const auto state = std::make_shared<std::atomic<std::uint32_t>>(starting);
  const SignalsBlocked blocked;
  try {
    std::thread([state, fd = writer.get()] { hold_life_line(fd, state); }).detach();
  } catch (const std::system_error&) {
    return {};
  }
  while (state->load() == starting) (void)futex_wait(*state, starting, std::nullopt);
  if (state->load() == unable) reader.reset();
  return reader;
}

}  // namespace

int life_line() {
  const pid_t process = ::getpid();
  const LifeLine* found = newest_life_line.load(std::memory_order_acquire);
  if (found == nullptr || found->process != process) {
    // Without a lock, which a child could inherit locked. A thread that comes second has made one
    // in vain.
    auto made = std::make_unique<LifeLine>(LifeLine{process, start_life_line(), found});
    if (newest_life_line.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) {
      found = made.release();
    }
  }
  return found->reader.get();
}

}  // namespace rueda
