#include "coordinator/submission.h"

#include <utility>

#include "core/in_quotes.h"
#include "core/strings.h"

namespace rueda {

std::string describe(const Request& request) {
  return str(name_of(request.collective), " of ", in_quotes(request.name));
}

Status error_of(const std::string& operation, const std::string& tensor, const Status& reason) {
  ErrorDetails details = reason.details();
  details.tensor = tensor;
  return Status(reason.code(), str("the ", operation, " cannot complete"), reason.peer(),
                std::move(details))
      .because(reason);
}

Status error_of(const Request& request, const Status& reason) {
  return error_of(describe(request), request.name, reason);
}

}  // namespace rueda
