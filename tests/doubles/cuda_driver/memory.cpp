#include "memory.h"

#include <cstring>
#include <new>

namespace rueda::test {

namespace {

// As the driver aligns allocations.
constexpr std::align_val_t alignment{256};

std::shared_ptr<std::byte[]> aligned_bytes(std::size_t bytes) {
  auto* memory = static_cast<std::byte*>(::operator new(bytes, alignment));
  std::memset(memory, 0xa5, bytes);  // fresh memory holds anything
  return {memory, [](std::byte* old) { ::operator delete(old, alignment); }};
}

}  // namespace

std::uint64_t Memory::add(Range range) {
  range.owned = aligned_bytes(range.bytes);
  const std::lock_guard lock(mutex_);
  const std::uint64_t address =
      reinterpret_cast<std::uintptr_t>(range.owned.get()) | (range.device >= 0 ? device_tag : 0);
  ranges_[address] = std::move(range);
  return address;
}

void Memory::retire(Place range) {
  std::memset(range->second.owned.get(), 0xdd, range->second.bytes);
  freed_.push_back(std::move(range->second.owned));
  ranges_.erase(range);
}

std::uint64_t Memory::allocate(std::size_t bytes, int device) {
  return add({.bytes = bytes, .device = device});
}

bool Memory::free(std::uint64_t address, bool of_device) {
  const std::lock_guard lock(mutex_);
  const auto range = ranges_.find(address);
  if (range == ranges_.end() || !range->second.owned) return false;
  if ((range->second.device >= 0) != of_device || range->second.uses > 0) return false;
  if (range->second.pool != 0) return false;
  retire(range);
  return true;
}

std::uint64_t Memory::promise(std::size_t bytes, int device, std::uint64_t pool) {
  return add({.bytes = bytes, .device = device, .pool = pool, .life = Life::promised});
}

void Memory::fulfil(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto range = ranges_.find(address);
  if (range != ranges_.end() && range->second.life == Life::promised) {
    range->second.life = Life::there;
  }
}

bool Memory::give_up(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto range = ranges_.find(address);
  if (range == ranges_.end() || range->second.pool == 0) return false;
  if (range->second.life == Life::given_up) return false;
  range->second.life = Life::given_up;
  return true;
}

bool Memory::end(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto range = ranges_.find(address);
  if (range == ranges_.end()) return true;  // the double has begun anew
  const bool is_free = range->second.uses == 0;
  retire(range);
  return is_free;
}

void Memory::clear() {
  const std::lock_guard lock(mutex_);
  ranges_.clear();
  freed_.clear();
}

bool Memory::pin(std::uint64_t address, std::size_t bytes) {
  if (contains(address, 1) || contains(address + bytes - 1, 1)) return false;
  const std::lock_guard lock(mutex_);
  ranges_[address] = {.bytes = bytes};
  return true;
}

bool Memory::unpin(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto range = ranges_.find(address);
  if (range == ranges_.end() || range->second.owned || range->second.uses > 0) return false;
  ranges_.erase(range);
  return true;
}

Memory::Place Memory::find(std::uint64_t address) {
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return ranges_.end();
  const auto range = std::prev(after);
  return address < range->first + range->second.bytes ? range : ranges_.end();
}

int Memory::device_of(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto range = find(address);
  return range == ranges_.end() ? -2 : range->second.device;
}

bool Memory::contains(std::uint64_t address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto range = find(address);
  return range != ranges_.end() && range->second.life != Life::given_up &&
         address + bytes <= range->first + range->second.bytes;
}

bool Memory::is_there(std::uint64_t address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto range = find(address);
  return range != ranges_.end() && range->second.life != Life::promised &&
         address + bytes <= range->first + range->second.bytes;
}

bool Memory::in_use(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto range = find(address);
  return range != ranges_.end() && range->second.uses > 0;
}

void Memory::change_uses(std::uint64_t address, int by) {
  const std::lock_guard lock(mutex_);
  const auto range = find(address);
  if (range != ranges_.end()) range->second.uses += by;
}

std::size_t Memory::allocations() {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const auto& [address, range] : ranges_) {
    count += range.device >= 0 && range.life != Life::given_up ? 1 : 0;
  }
  return count;
}

}  // namespace rueda::test
