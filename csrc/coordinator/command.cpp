#include "coordinator/command.h"

namespace rueda {

namespace {

// Whether this rank learns of a loss before or just after an operation is submitted depends on how
// busy the machine is. So the application gets the same error in both cases.
Status told(const Request& request, const Status& reason) {
  const bool is_plain = reason.code() != ErrorCode::peer_lost || request.name.empty() ||
                        !reason.details().tensor.empty();
  return is_plain ? reason : error_of(request, reason);
}

}  // namespace

void Command::refuse(const Status& reason) const {
  for (const Submission& submission : submissions) {
    submission.handle->complete(told(submission.request, reason));
  }
  if (handle) handle->complete(reason);
  if (message.handle) message.handle->complete(reason);
  if (table && table->operation) table->operation->handle->complete(reason);
}

}  // namespace rueda
