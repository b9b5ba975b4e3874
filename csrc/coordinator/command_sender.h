// How a command of the application comes to the owner of the progress lock, and what its caller
// then waits for. Any thread may call everything.
#pragma once

#include <memory>
#include <utility>

#include "coordinator/command_queue.h"
#include "coordinator/progress.h"

namespace rueda {

class CommandSender {
 public:
  // Both are referred to.
  CommandSender(CommandQueue& commands, Progress& progress)
      : commands_(commands), progress_(progress) {}

  // Of a new operation: whoever waits for it makes progress meanwhile.
  [[nodiscard]] std::shared_ptr<HandleState> make_handle() const {
    return std::make_shared<HandleState>(progress_.lock());
  }
  // Queues the command and wakes the owner.
  void send(Command command) {
    commands_.push(std::move(command));
    progress_.notify();
  }
  // The same with a handle of its own; returns what comes of it once it has been carried out.
  Status send_and_wait(Command command) {
    command.handle = make_handle();
    const auto handle = command.handle.state();
    send(std::move(command));
    handle->outlast();
    return handle->status;
  }

 private:
  CommandQueue& commands_;
  Progress& progress_;
};

}  // namespace rueda
