#include "core/interruption.h"

namespace rueda {

namespace {

thread_local std::function<void()> current;
thread_local Duration pause{};

}  // namespace

Interruptible::Interruptible(std::function<void()> look, Duration between_looks) {
  current = std::move(look);
  pause = between_looks;
}

Interruptible::~Interruptible() {
  current = nullptr;
}

bool is_interruptible() {
  return static_cast<bool>(current);
}

void look_for_interruption() {
  if (!current) return;
  const auto look = std::exchange(current, nullptr);
  look();
  current = look;
}

Duration pause_between_looks() {
  return pause;
}

}  // namespace rueda
