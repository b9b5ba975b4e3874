#include "gil.h"

#include <unistd.h>

namespace rueda::bindings {

namespace {

[[noreturn]] void sleep_for_ever() {
  for (;;) ::pause();
}

bool interpreter_ends() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() == 0 || Py_IsFinalizing() != 0;
#else
  return Py_IsInitialized() == 0 || _Py_IsFinalizing() != 0;
#endif
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

GilTaken::Interpreter::Interpreter() {
  const bool is_main_thread = ::gettid() == ::getpid();
  if (!is_main_thread && interpreter_ends()) sleep_for_ever();
}

}  // namespace rueda::bindings
