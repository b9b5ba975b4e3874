// Passes commands of the application to the owner of the progress lock, and creates the handles
// that their callers wait for. Any thread may call everything.
#pragma once

#include <memory>
#include <utility>

#include "coordinator/command_queue.h"
#include "coordinator/progress.h"

namespace rueda {

class CommandSender {
 public:
  // Keeps references to both.
  CommandSender(CommandQueue& commands, Progress& progress)
      : commands_(commands), progress_(progress) {}

  // For a new operation: a thread that waits for it makes progress meanwhile.
  [[nodiscard]] std::shared_ptr<HandleState> make_handle() const {
    return std::make_shared<HandleState>(progress_.lock());
  }
  // Queues the command and wakes the owner.
  void send(Command command) {
    commands_.push(std::move(command));
    progress_.notify();
  }
  // The same with its own handle; returns the command's result once it has been carried out.
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
