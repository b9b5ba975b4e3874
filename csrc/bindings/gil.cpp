#include "gil.h"

#include <unistd.h>

namespace rueda::bindings {

namespace {

[[noreturn]] void sleep_for_ever() {
  for (;;) ::pause();
}

}  // namespace

GilReleased::~GilReleased() {
  try {
    PyEval_RestoreThread(state_);
  } catch (...) {
    // pthread_exit() unwinds with something like an exception. This handler is never left, so
    // nothing is unwound; the thread does not hold the GIL.
    sleep_for_ever();
  }
}

}  // namespace rueda::bindings
