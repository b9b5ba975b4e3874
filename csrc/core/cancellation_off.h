// Application threads may be cancelled (pthread_cancel()), which unwinds them from inside any
// blocking call.
#pragma once

#include <pthread.h>

namespace rueda {

// While it exists, this thread is not cancelled: nobody would finish its work.
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
