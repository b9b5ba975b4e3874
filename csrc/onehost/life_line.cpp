#include "onehost/life_line.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>

#include "core/fork.h"
#include "core/futex.h"
#include "core/signals_blocked.h"
#include "core/unique_fd.h"

namespace rueda {

namespace {

// Newer than the system's headers may be.
constexpr unsigned close_range_unshare = 2;  // of <linux/close_range.h>
constexpr long close_range_number = 436;     // on all architectures

struct LifeLine {
  int process;  // its fork_generation()
  UniqueFd reader;
  const LifeLine* before;  // of the process this one was forked from
};

std::atomic<const LifeLine*> newest_life_line{nullptr};

enum HolderOutcome : std::uint32_t { starting, holding, unable };

using HolderState = std::shared_ptr<std::atomic<std::uint32_t>>;

void say(std::atomic<std::uint32_t>& state, HolderOutcome outcome) {
  state.store(outcome);
  futex_wake_all(state);
}

// Gives this thread its own descriptor table, with `writer` as its only entry. Blocks all signals:
// their handlers must not run without the other descriptors.
void hold_life_line(unsigned writer, std::atomic<std::uint32_t>& state) {
  pthread_setname_np(pthread_self(), "rueda-alive");
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
  const bool is_alone = ::syscall(close_range_number, writer + 1, ~0U, close_range_unshare) == 0;
  say(state, is_alone ? holding : unable);
  if (!is_alone) return;
  if (writer > 0) ::syscall(close_range_number, 0U, writer - 1, 0U);
  while (state.load() == holding) (void)futex_wait(state, holding, std::nullopt);
}

// A child that another thread forks meanwhile holds the writer, too. While that child lives, the
// life line does not end, and others learn of this process's end as if it had none.
UniqueFd start_life_line(const HolderState& state) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return {};
  UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  const SignalsBlocked blocked;
  try {
    std::thread([state, fd = static_cast<unsigned>(writer.get())] {
      hold_life_line(fd, *state);
    }).detach();
  } catch (const std::system_error&) {
    return {};
  }
  while (state->load() == starting) (void)futex_wait(*state, starting, std::nullopt);
  if (state->load() == unable) reader.reset();
  return reader;
}

}  // namespace

int life_line() {
  const int process = fork_generation();
  const LifeLine* found = newest_life_line.load(std::memory_order_acquire);
  if (found == nullptr || found->process != process) {
    // Lock-free, since a child could inherit a locked lock.
    const auto state = std::make_shared<std::atomic<std::uint32_t>>(starting);
    auto made = std::make_unique<LifeLine>(LifeLine{process, start_life_line(state), found});
    if (newest_life_line.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) {
      found = made.release();
    } else {
      say(*state, unable);  // another thread was faster
    }
  }
  return found->reader.get();
}

}  // namespace rueda
