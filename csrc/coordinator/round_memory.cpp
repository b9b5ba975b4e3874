#include "coordinator/round_memory.h"

#include <algorithm>
#include <new>

#include "core/log.h"

namespace rueda {

namespace {

// No process set has such a number. Each set has 2^31 keys.
std::uint64_t table_key(int set_id) {
  return std::uint64_t{1} << 62 | static_cast<std::uint64_t>(set_id) << 31;
}

}  // namespace

RoundMemory::RoundMemory(HostParts parts, int set_id, int plans)
    : parts_(std::move(parts)),
      key_(table_key(set_id)),
      plans_(parts_.own.ranks.size() <= ReadinessTable::max_members ? plans : 0) {
  if (may_have_table() && leads() && parts_.own) make_table();
}

RoundMemory::~RoundMemory() {
  if (may_have_table() && parts_.own) parts_.own.memory->retire(key_, parts_.own.ranks);
}

void RoundMemory::forgo(const HostMembers& host, int set_id) {
  if (host.ranks.size() > ReadinessTable::max_members) return;  // none has a table
  host.memory->retire(table_key(set_id), host.ranks);
}

// Before a slot is reused, at least as many plans are made as may exist at one time, and more than
// one list of responses makes. So by then every rank has long finished what it was doing to the
// slot, and knows that its plan was cancelled.
int RoundMemory::slots() const {
  constexpr int least = 1024;
  return 2 * std::max(plans_, least);
}

void RoundMemory::make_table() {
  try {
    const std::size_t bytes = ReadinessTable::bytes(slots());
    (void)parts_.own.memory->publish(key_, bytes, bytes);
  } catch (const std::bad_alloc&) {
    log(LogLevel::info, "there is no shared memory left to repeat operations without negotiation");
  }
}

bool RoundMemory::open() {
  if (!may_have_table() || std::exchange(searched_, true) || !parts_.own) return false;
  std::byte* const memory = parts_.own.memory->find(parts_.own.ranks.front(), key_);
  if (memory != nullptr) use(memory);
  return memory != nullptr;
}

void RoundMemory::open_alone() {
  own_table_.resize(ReadinessTable::bytes(slots()) / sizeof(CacheLine) + 1);
  use(own_table_.front().bytes.data());
}

void RoundMemory::use(std::byte* memory) {
  using Decided = ReadinessTable::Decided;
  const auto members = static_cast<int>(std::max<std::size_t>(parts_.own.ranks.size(), 1));
  readiness_.emplace(memory, slots(), members, spans_hosts() ? Decided::by_hosts : Decided::here);
  eager_.emplace(parts_, key_, slots());
}

void RoundMemory::wake_member(int member) const {
  const int rank = parts_.own.ranks[static_cast<std::size_t>(member)];
  wake(parts_.own.memory->wake_target(rank));
}

void RoundMemory::wake_others() const {
  for (int member = 0; member < static_cast<int>(parts_.own.ranks.size()); ++member) {
    if (member != parts_.rank) wake_member(member);
  }
}

}  // namespace rueda
