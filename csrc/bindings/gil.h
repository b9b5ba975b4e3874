// Releasing the GIL, and taking it again while the interpreter may be ending.
#pragma once

#include <pybind11/pybind11.h>

#include "core/interruption.h"

namespace rueda::bindings {

// Other Python threads run while this object exists. Once the interpreter ends, a thread that tries
// to return sleeps forever, as any thread does from Python 3.14 on. Earlier versions end the thread
// by unwinding it, which destructors do not allow: the process would abort, and a successful
// training would fail because of a waiting daemon thread.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased();
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* const state_;
};

// Takes the GIL in a thread that has released it. Once the interpreter ends, a thread other than
// the main one sleeps forever instead: what taking the GIL needs may be gone.
class GilTaken {
 private:
  struct Interpreter {
    Interpreter();  // returns if it is not ending
  };

  const Interpreter interpreter_;
  const pybind11::gil_scoped_acquire gil_;
};

// Runs the handlers of pending signals and raises what they raise. The caller has the GIL.
inline void raise_signals() {
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

// Runs without the GIL; Ctrl-C ends waits. The caller has the GIL.
template <class Action>
auto interruptibly(const Action& action) {
  const GilReleased released;
  const Interruptible interruptible([] {
    const GilTaken gil;
    raise_signals();
  });
  return action();
}

}  // namespace rueda::bindings
