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
    // pthread_exit() unwinds by something that is like an exception. This is not left, so that
    // nothing is unwound; the thread has no lock of Python's.
    sleep_for_ever();
  }
}

}  // namespace rueda::bindings
