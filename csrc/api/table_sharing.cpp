#include "api/table_sharing.h"

#include <algorithm>
#include <new>
#include <utility>

#include "coordinator/runtime.h"
#include "core/fork.h"
#include "onehost/registered_memory.h"
#include "server/update_rule.h"

namespace rueda {

namespace {

// Nothing else is published under these keys.
std::uint64_t key_of(std::uint64_t table) {
  return std::uint64_t{1} << 60 | table;
}

}  // namespace

// What the ranks of a host have published for a table; retired once this rank uses none of it.
struct TableSharing::Publication {
  std::shared_ptr<HostMemory> host;
  std::uint64_t key;
  std::vector<int> members;  // within the host's memory
  const int generation = fork_generation();

  Publication(std::shared_ptr<HostMemory> memory, std::uint64_t number, std::vector<int> ranks)
      : host(std::move(memory)), key(number), members(std::move(ranks)) {}
  ~Publication() {
    if (generation == fork_generation()) host->retire(key, members);
  }
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;
};

TableSharing::TableSharing(const TableOptions& options, const std::vector<std::int64_t>& bounds,
                           const Runtime& runtime, const HeldTable& held)
    : options_(options),
      bounds_(bounds),
      ranks_(held.ranks),
      rank_(static_cast<std::size_t>(held.rank)) {
  const HostGroup& host = runtime.epoch().layout().host;
  const UpdateRule* const rule = find_update_rule(options.rule);
  if (host.memory() == nullptr || options.replicated || options.order == TableOrder::ring ||
      !is_own_rule(options.rule)) {
    return;
  }
  const std::int64_t row_bytes =
      options.width * (1 + rule->states) * static_cast<std::int64_t>(sizeof(float));
  if (row_bytes > shared_row_bytes) return;
  std::vector<int> members;
  for (const int rank : ranks_) {
    places_.push_back(host.rank_of(rank));
    if (places_.back()) members.push_back(*places_.back());
  }
  publication_ =
      std::make_shared<Publication>(host.memory(), key_of(held.number), std::move(members));
}

DirectPart::Shape TableSharing::shape(std::size_t index) const {
  if (options_.width > 0) return {.width = options_.width, .initial = options_.initial};
  return {.begin = bounds_[index], .count = bounds_[index + 1] - bounds_[index]};
}

bool TableSharing::may_share(std::size_t index) const {
  return publication_ != nullptr && shape(index).count <= shared_part_elements;
}

ShardMemory TableSharing::own_memory() {
  auto registered = RegisteredMemory::of_process();
  if (!may_share(rank_) || !registered) return {};
  try {
    own_ = new (publication_->host->publish(publication_->key, sizeof(SharedPart))) SharedPart();
  } catch (const std::bad_alloc&) {
    return {};
  }
  RegisteredMemory* const memory = registered.value();
  return {.allocate = [memory,
                       keep = publication_](std::size_t bytes) { return memory->allocate(bytes); },
          .part = own_,
          .base = memory->memory()};
}

void TableSharing::publish() {
  if (own_ != nullptr) static_cast<void>(own_->init());
}

void TableSharing::find_parts(TableUse& use, const AppliedRule& rule) const {
  if (publication_ == nullptr) return;
  const HostMemory& host = *publication_->host;
  use.direct.resize(ranks_.size());
  for (std::size_t index = 0; index < ranks_.size(); ++index) {
    if (!places_[index] || !may_share(index)) continue;
    auto* const part = reinterpret_cast<SharedPart*>(host.find(*places_[index], publication_->key));
    if (part == nullptr || part->state.load(std::memory_order_acquire) != SharedPart::open)
      continue;
    use.direct[index] = std::make_unique<DirectPart>(*part, host.registered_of(*places_[index], 0),
                                                     shape(index), rule, publication_);
  }
  use.is_direct.store(true);
}

}  // namespace rueda
