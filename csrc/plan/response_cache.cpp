#include "plan/response_cache.h"

#include <iterator>

namespace rueda {

const ResponseCache::Entry* ResponseCache::find(std::uint64_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &*found->second;
}

const ResponseCache::Entry* ResponseCache::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &*found->second;
}

const ResponseCache::Entry* ResponseCache::find(
    const Request& request, std::span<const std::pair<int, std::int64_t>> first_extents) const {
  if (!request.error.ok()) return nullptr;
  const Entry* const known = find(request.name);
  if (known == nullptr || compare(known->request, request) ||
      !covers_output(known->request, request)) {
    return nullptr;
  }
  for (const auto& [rank, rows] : first_extents) {
    if (known->first_extents[static_cast<std::size_t>(rank)] != rows) return nullptr;
  }
  return known;
}

void ResponseCache::apply(const Response& response) {
  // A response with joined ranks is an exception that will not recur in the same form.
  if (capacity_ <= 0 || response.kind != ResponseKind::execute || !response.absent.empty()) return;
  if (response.request.collective > Collective::barrier) return;
  const auto found = by_name_.find(response.request.name);
  if (found != by_name_.end()) {
    const Entry& known = *found->second;
    if (!compare(known.request, response.request) &&
        known.request.output_bytes == response.request.output_bytes &&
        known.first_extents == response.first_extents) {
      entries_.splice(entries_.begin(), entries_, found->second);
      return;
    }
    erase(found->second);
  }
  entries_.push_front({next_id_++, response.request, response.first_extents});
  by_id_[entries_.front().id] = entries_.begin();
  by_name_[response.request.name] = entries_.begin();
  if (entries_.size() > static_cast<std::size_t>(capacity_)) erase(std::prev(entries_.end()));
}

void ResponseCache::erase(Entries::iterator entry) {
  by_id_.erase(entry->id);
  by_name_.erase(entry->request.name);
  entries_.erase(entry);
}

}  // namespace rueda
