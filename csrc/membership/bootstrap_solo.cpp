#include "membership/bootstrap_solo.h"

#include "core/strings.h"

namespace rueda {

Status SoloBootstrap::put(const std::string& key, const std::string& value) {
  if (known_.emplace(key, value).second) return {};
  return Status(ErrorCode::internal, str("bootstrap key '", key, "' was put twice"));
}

Expected<std::string> SoloBootstrap::get(const std::string& key) {
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  return Status(ErrorCode::initialization, str("nobody has put the bootstrap key '", key, "'"));
}

}  // namespace rueda
