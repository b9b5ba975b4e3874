#include "onehost/eager_buffers.h"

#include <new>
#include <utility>

namespace rueda {

namespace {

std::size_t part_of(int slot, int part_slots) {
  return static_cast<std::size_t>(slot / part_slots);
}

}  // namespace

EagerBuffers::EagerBuffers(std::shared_ptr<HostMemory> host, std::vector<int> members, int rank,
                           const Settings& settings)
    : host_(std::move(host)),
      members_(std::move(members)),
      rank_(rank),
      settings_(settings),
      opened_(part_of(settings.slots + part_slots - 1, part_slots)),
      parts_(opened_.size(), std::vector<Part*>(members_.size())),
      reserved_(static_cast<std::size_t>(settings.slots)),
      offered_(static_cast<std::size_t>(settings.slots)),
      populated_(static_cast<std::size_t>(settings.slots)) {}

EagerBuffers::~EagerBuffers() {
  for (std::size_t part = 0; host_ && part < opened_.size(); ++part) {
    if (opened_[part]) host_->retire(key_of(part), members_);
  }
}

EagerBuffers::Part* EagerBuffers::publish(std::size_t part) {
  const std::size_t bytes = sizeof(Part) + 2 * settings_.capacity * part_slots;
  if (!host_) {
    auto* const memory = static_cast<Part*>(std::aligned_alloc(alignof(Part), bytes));
    if (memory != nullptr) private_.emplace_back(memory);
    return memory;
  }
  try {
    return reinterpret_cast<Part*>(host_->publish(key_of(part), bytes, sizeof(Part)));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

EagerBuffers::Part* EagerBuffers::find(int member, std::size_t part) {
  Part*& found = parts_[part][static_cast<std::size_t>(member)];
  if (found == nullptr && host_) {
    found = reinterpret_cast<Part*>(
        host_->find(members_[static_cast<std::size_t>(member)], key_of(part)));
  }
  return found;
}

void EagerBuffers::reserve(int slot, std::size_t bytes) {
  const std::size_t part = part_of(slot, part_slots);
  const bool is_new = !opened_[part];
  opened_[part] = true;
  if (!writes()) return;
  Part*& own = parts_[part][static_cast<std::size_t>(rank_)];
  if (is_new) own = publish(part);
  // All members have long read what was sent along for the slot's previous plan.
  if (own != nullptr) give_memory_back(*own, slot);
  // The result from other hosts must find memory: by then the members rely on it.
  const bool is_first = settings_.writers == Writers::first;
  reserved_[static_cast<std::size_t>(slot)] =
      own != nullptr &&
      (!is_first || (has_memory(slot, 0, bytes, bytes) && has_memory(slot, 1, bytes, bytes)));
  offered_[static_cast<std::size_t>(slot)] = {};
  if (own == nullptr) return;
  // Clears what the slot's previous plan left.
  for (Line& line : own->lines[static_cast<std::size_t>(slot % part_slots)]) line.has_content = 0;
}

std::byte* EagerBuffers::buffers_of(Part& part, int slot) const {
  const auto index = static_cast<std::size_t>(slot % part_slots);
  return reinterpret_cast<std::byte*>(&part + 1) + index * 2 * settings_.capacity;
}

// The two buffers of a slot share a page if they fit.
std::size_t EagerBuffers::stride_of(std::size_t bytes) {
  return bytes <= small_page / 2 ? small_page / 2 : round_up(bytes, small_page);
}

std::byte* EagerBuffers::content_of(Part& part, int slot, std::uint64_t round,
                                    std::size_t bytes) const {
  const auto index = static_cast<std::size_t>(slot % part_slots);
  const std::size_t parity = round & 1;
  return bytes <= line_bytes ? part.lines[index][parity].content.data()
                             : buffers_of(part, slot) + parity * stride_of(bytes);
}

// Allocates memory in the first rounds, since many plans have none.
bool EagerBuffers::has_memory(int slot, std::uint64_t round, std::size_t bytes, std::size_t used) {
  if (!host_ || bytes <= line_bytes) return true;
  const std::size_t stride = stride_of(bytes);
  const bool share_page = stride < small_page;
  const std::size_t parity = share_page ? 0 : round & 1;
  std::size_t& populated = populated_[static_cast<std::size_t>(slot)][parity];
  const std::size_t needed = share_page ? small_page : round_up(used, small_page);
  if (needed <= populated) return true;
  if (memory_ + needed - populated > settings_.memory) return false;
  Part& own = *parts_[part_of(slot, part_slots)][static_cast<std::size_t>(rank_)];
  if (!populate(buffers_of(own, slot) + parity * stride, needed)) return false;
  memory_ += needed - populated;
  populated = needed;
  return true;
}

void EagerBuffers::give_memory_back(Part& own, int slot) {
  auto& populated = populated_[static_cast<std::size_t>(slot)];
  const std::size_t bytes = populated[0] + populated[1];
  if (bytes == 0) return;
  punch_out(buffers_of(own, slot), 2 * settings_.capacity);
  memory_ -= bytes;
  populated = {};
}

std::byte* EagerBuffers::offer(int slot, std::uint64_t round, std::size_t bytes, std::size_t used) {
  if (!reserved_[static_cast<std::size_t>(slot)]) return nullptr;
  if (!has_memory(slot, round, bytes, used)) {
    withdraw(slot, round);
    return nullptr;
  }
  Part& own = *parts_[part_of(slot, part_slots)][static_cast<std::size_t>(rank_)];
  own.lines[static_cast<std::size_t>(slot % part_slots)][round & 1].has_content = 1;
  offered_[static_cast<std::size_t>(slot)][round & 1] = true;
  return content_of(own, slot, round, bytes);
}

void EagerBuffers::withdraw(int slot, std::uint64_t round) {
  if (!reserved_[static_cast<std::size_t>(slot)]) return;
  Part& own = *parts_[part_of(slot, part_slots)][static_cast<std::size_t>(rank_)];
  own.lines[static_cast<std::size_t>(slot % part_slots)][round & 1].has_content = 0;
  offered_[static_cast<std::size_t>(slot)][round & 1] = false;
}

bool EagerBuffers::collect(int slot, std::uint64_t round, std::size_t bytes,
                           std::vector<const std::byte*>& contributions) {
  contributions.clear();
  const int writers = settings_.writers == Writers::all ? static_cast<int>(members_.size()) : 1;
  for (int member = 0; member < writers; ++member) {
    Part* const part = find(member, part_of(slot, part_slots));
    if (part == nullptr) return false;
    // Reading this rank's own line would wait until its stores are in the cache.
    const bool has_content =
        member == rank_ && settings_.writers == Writers::all
            ? offered_[static_cast<std::size_t>(slot)][round & 1]
            : part->lines[static_cast<std::size_t>(slot % part_slots)][round & 1].has_content != 0;
    if (!has_content) return false;
    contributions.push_back(content_of(*part, slot, round, bytes));
  }
  return true;
}

}  // namespace rueda
