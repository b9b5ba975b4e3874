// Threads of the application may be cancelled (pthread_cancel()), which unwinds them from within
// whatever blocks.
#pragma once

#include <pthread.h>

namespace rueda {

// While it lives, this thread is not cancelled: nobody would go on with what it has in hand.
class CancellationOff {
 public:
  CancellationOff() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~CancellationOff() { pthread_setcancelstate(before_, nullptr); }
  CancellationOff(const CancellationOff&) = delete;
  CancellationOff& operator=(const CancellationOff&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace rueda
