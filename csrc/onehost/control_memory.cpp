#include "onehost/control_memory.h"

#include <algorithm>
#include <new>
#include <optional>

#include "onehost/huge_pages.h"

namespace rueda {

namespace {

constexpr std::size_t directory_at = small_page;
constexpr std::size_t lanes_at = directory_at + round_up(sizeof(Directory), small_page);
static_assert(sizeof(HostRankHeader) <= directory_at);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

std::uint64_t blocks_at(int size) {
  return lanes_at + round_up(static_cast<std::size_t>(size) * sizeof(RetirementLane), small_page);
}

std::size_t length_of(std::size_t bytes) {
  return round_up(std::max<std::size_t>(bytes, 1), small_page);
}

}  // namespace

std::size_t ControlMemory::min_bytes(int size) {
  return blocks_at(size) + small_page;
}

HostRankHeader& ControlMemory::header() const {
  return *reinterpret_cast<HostRankHeader*>(mapping_->memory());
}

Directory& ControlMemory::directory() const {
  return *reinterpret_cast<Directory*>(at(directory_at));
}

RetirementLane& ControlMemory::lane(int peer) const {
  return reinterpret_cast<RetirementLane*>(at(lanes_at))[peer];
}

FreeRange ControlMemory::blocks() const {
  return {blocks_at(size_), mapping_->bytes()};
}

ControlBlocks::ControlBlocks(int rank, std::span<const ControlMemory> all)
    : rank_(rank), all_(all), delayed_(all.size()) {
  free_.give(own().blocks());
}

ControlRoom::~ControlRoom() {
  owner_.give_back(blocks_);
}

std::unique_ptr<ControlRoom> ControlBlocks::reserve(std::span<const std::size_t> lengths) {
  const std::lock_guard lock(mutex_);
  send_delayed();
  hear();
  std::vector<FreeRange> blocks;
  for (const std::size_t bytes : lengths) {
    const auto block = take(bytes);
    if (!block) {
      for (const FreeRange taken : blocks) free_.give(taken);
      reserved_ -= blocks.size();
      return nullptr;
    }
    blocks.push_back(*block);
    ++reserved_;
  }
  return std::make_unique<ControlRoom>(*this, std::move(blocks));
}

void ControlBlocks::give_back(std::span<const FreeRange> reserved) {
  const std::lock_guard lock(mutex_);
  for (const FreeRange block : reserved) free_.give(block);
  reserved_ -= reserved.size();
}

std::optional<FreeRange> ControlBlocks::take(std::size_t bytes) {
  if (published_.size() + reserved_ >= Directory::capacity) return std::nullopt;
  const std::size_t length = length_of(bytes);
  const auto place = free_.take(length, bytes >= huge_page ? huge_page : small_page);
  if (!place) return std::nullopt;
  return FreeRange{*place, *place + length};
}

std::optional<FreeRange> ControlBlocks::take_from(ControlRoom& room, std::size_t bytes) {
  const auto fits = [&](const FreeRange& block) { return block.length() == length_of(bytes); };
  const auto found = std::find_if(room.blocks_.begin(), room.blocks_.end(), fits);
  if (found == room.blocks_.end()) return std::nullopt;
  const FreeRange block = *found;
  room.blocks_.erase(found);
  --reserved_;
  return block;
}

std::byte* ControlBlocks::publish(std::uint64_t key, std::size_t bytes, std::size_t populated,
                                  ControlRoom* room) {
  const std::lock_guard lock(mutex_);
  send_delayed();
  hear();
  auto block = room != nullptr ? take_from(*room, bytes) : std::nullopt;
  if (!block) block = take(bytes);
  if (!block) throw std::bad_alloc();
  std::byte* const memory = own().at(block->begin);
  // Zeros: untouched so far, or punched out when it was reclaimed.
  if (bytes >= huge_page) {
    static_cast<void>(put_on_huge_pages(memory, block->length() / huge_page * huge_page));
  }
  if (!populate(memory, length_of(std::min(populated, bytes))) ||
      !own().directory().enter(key, block->begin)) {
    free_.give(*block);
    throw std::bad_alloc();
  }
  published_.emplace(key, *block);
  return memory;
}

void ControlBlocks::retire(std::uint64_t key, const std::vector<int>& members) {
  const std::lock_guard lock(mutex_);
  send_delayed();
  hear();
  Retirement& retirement = retired_[key];
  retirement.is_own = true;
  for (const int member : members) {
    if (member == rank_) continue;
    tell(member, key);
    if (!retirement.early.contains(member)) retirement.awaited.insert(member);
  }
  if (retirement.awaited.empty()) reclaim(key);
}

void ControlBlocks::tell(int peer, std::uint64_t key) {
  auto& delayed = delayed_[static_cast<std::size_t>(peer)];
  if (delayed.empty() && all_[static_cast<std::size_t>(peer)].lane(rank_).put(key)) return;
  delayed.push_back(key);
}

void ControlBlocks::send_delayed() {
  for (std::size_t peer = 0; peer < delayed_.size(); ++peer) {
    auto& delayed = delayed_[peer];
    while (!delayed.empty() && all_[peer].lane(rank_).put(delayed.front())) delayed.pop_front();
  }
}

void ControlBlocks::hear() {
  for (int peer = 0; peer < static_cast<int>(all_.size()); ++peer) {
    std::uint64_t key = 0;
    while (own().lane(peer).take(key)) {
      Retirement& retirement = retired_[key];
      if (!retirement.is_own) {
        retirement.early.insert(peer);
      } else if (retirement.awaited.erase(peer) > 0 && retirement.awaited.empty()) {
        reclaim(key);
      }
    }
  }
}

void ControlBlocks::reclaim(std::uint64_t key) {
  retired_.erase(key);
  const auto found = published_.find(key);
  if (found == published_.end()) return;
  const FreeRange block = found->second;
  published_.erase(found);
  own().directory().remove(key);
  punch_out(own().at(block.begin), block.length());
  free_.give(block);
}

}  // namespace rueda
