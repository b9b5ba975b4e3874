// Wakes a process that sleeps on a descriptor: a datagram socket in the abstract namespace.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "core/unique_fd.h"
#include "transport/socket.h"

namespace rueda {

class Doorbell {
 public:
  // Binds a name of its own.
  static Expected<Doorbell> open();

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] int fd() const { return fd_.get(); }

  // Never blocks. That the other is gone, or has been rung often already, is not an error.
  void ring(const AbstractAddress& other) const;
  // Takes the rings that have come.
  void silence() const;

 private:
  std::string name_;
  UniqueFd fd_;
};

}  // namespace rueda
