#include "core/interruption.h"

namespace rueda {

namespace {

thread_local std::function<void()> current;

}  // namespace

Interruptible::Interruptible(std::function<void()> look) {
  current = std::move(look);
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

}  // namespace rueda
