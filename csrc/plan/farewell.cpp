#include "plan/farewell.h"

#include "core/strings.h"
#include "plan/negotiation_message.h"

namespace rueda {

std::vector<std::byte> farewell_of(int neighbour, const Tree& tree, const SetNaming& naming) {
  if (tree.is_root() || neighbour != tree.parent()) {
    UpMessage farewell;
    farewell.leaving.push_back(neighbour);
    return encode(farewell);
  }
  Response left;
  left.kind = ResponseKind::left;
  left.rank = neighbour;
  left.status =
      Status(ErrorCode::shutdown, str(naming.describe({neighbour}), ' ', naming.departure()),
             naming.world_rank(neighbour));
  return encode({left}, ResponseCache(0));
}

}  // namespace rueda
