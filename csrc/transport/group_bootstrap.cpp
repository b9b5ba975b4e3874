#include "transport/group_bootstrap.h"

#include <algorithm>
#include <utility>

#include "core/strings.h"

namespace rueda {

GroupBootstrap::GroupBootstrap(Bootstrap& all, std::vector<int> ranks, std::string name,
                               int barriers)
    : all_(all),
      ranks_(std::move(ranks)),
      rank_(static_cast<int>(std::find(ranks_.begin(), ranks_.end(), all.rank()) - ranks_.begin())),
      prefix_(str(name, "/", ranks_.front(), "/")),
      barriers_(barriers) {}

Status GroupBootstrap::put(const std::string& key, const std::string& value) {
  return all_.put(prefix_ + key, value);
}

Expected<std::string> GroupBootstrap::get(const std::string& key) {
  return all_.get(prefix_ + key);
}

Status GroupBootstrap::barrier(Time deadline) {
  if (barriers_ == 0) return {ErrorCode::internal, str(prefix_, " has no barrier left")};
  --barriers_;
  return all_.barrier(deadline);
}

Status GroupBootstrap::finish(Time deadline) {
  while (barriers_ > 0) {
    if (Status met = barrier(deadline); !met.ok()) return met;
  }
  return {};
}

}  // namespace rueda
