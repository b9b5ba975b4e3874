#include "transport/transport.h"

#include <thread>

#include "core/strings.h"
#include "core/wait_fd.h"

namespace rueda {

Status Transport::wait(const Ticket& ticket, Time deadline) {
  while (!ticket->done) {
    if (progress()) continue;
    if (Clock::now() >= deadline) {
      return Status(ErrorCode::timeout,
                    str("a transfer with rank ", ticket->peer, " over ", name(),
                        " did not finish before its deadline"),
                    ticket->peer);
    }
    if (wait_fd() < 0) {
      std::this_thread::yield();
    } else if (arm()) {
      wait_readable(wait_fd(), deadline);
      disarm();
    }
  }
  return ticket->status;
}

}  // namespace rueda
