// Leaving Python's lock, and coming back to it while the interpreter may be ending.
#pragma once

#include <pybind11/pybind11.h>

namespace rueda::bindings {

// Other threads of Python run while it lives. Once the interpreter ends, a thread that comes back
// sleeps for ever, as from Python 3.14 on any does. Python's own way before is to end the thread by
// unwinding it, which destructors do not let happen: the process would abort, and a training that
// has succeeded fail for a daemon thread that was waiting.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased();
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* const state_;
};

// Raises what handlers of signals that have come raise. The caller has the lock.
inline void raise_signals() {
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

}  // namespace rueda::bindings
