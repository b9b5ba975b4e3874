// Signals are for the application's threads: the main thread of Python must see Ctrl-C.
#pragma once

#include <signal.h>

#include <initializer_list>

namespace rueda {

// Threads that are started while it exists receive no signals except those for their own faults.
// If these were blocked, the process would end without calling the application's handler, such as
// the one of Python's faulthandler, which reports where.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) {
      sigdelset(&all, fault);
    }
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace rueda
