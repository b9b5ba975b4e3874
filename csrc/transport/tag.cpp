#include "transport/tag.h"

#include "core/strings.h"

namespace rueda {

std::string describe(const Tag& tag) {
  return str("group ", tag.group, ", stream ", tag.stream, ", operation ", tag.sequence, ", part ",
             tag.part);
}

}  // namespace rueda
