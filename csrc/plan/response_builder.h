// The answer to a tensor that all ranks of a process set have submitted: that it is executed, or
// why it cannot be.
#pragma once

#include "core/status.h"
#include "plan/announced_tensors.h"
#include "plan/response.h"
#include "plan/set_naming.h"

namespace rueda {

class ResponseBuilder {
 public:
  // Both must outlive this.
  ResponseBuilder(const AnnouncedTensors& tensors, const SetNaming& naming)
      : tensors_(tensors), naming_(naming) {}

  [[nodiscard]] Response respond(const AnnouncedTensor& tensor) const;
  // Ok if all have requested the same and it can be done.
  [[nodiscard]] Status verdict(const AnnouncedTensor& tensor) const;

  // The same error for each of `groups`.
  static void add_error(ResponseList& list, const Response& error,
                        const AnnouncedTensor::Groups& groups);

 private:
  [[nodiscard]] Status verdict_on_absent(const AnnouncedTensor& tensor) const;
  [[nodiscard]] Status verdict_on_variants(const AnnouncedTensor& tensor) const;

  const AnnouncedTensors& tensors_;
  const SetNaming& naming_;
};

}  // namespace rueda
