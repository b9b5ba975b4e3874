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

}  // namespace

std::size_t ControlMemory::least_bytes(int size) {
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

std::byte* ControlBlocks::publish(std::uint64_t key, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  send_delayed();
  hear();
  const bool is_large = bytes >= huge_page;
  const std::size_t unit = is_large ? huge_page : small_page;
  const std::size_t length = round_up(std::max<std::size_t>(bytes, 1), small_page);
  const auto place = free_.take(length, unit);
  if (!place) throw std::bad_alloc();
  // Zeros: nobody has touched it yet, or it was punched out when it was reclaimed.
  if (is_large) {
    static_cast<void>(put_on_huge_pages(own().at(*place), length / huge_page * huge_page));
  }
  const FreeRange block{*place, *place + length};
  if (!own().directory().enter(key, *place)) {
    free_.give(block);
    throw std::bad_alloc();
  }
  published_.emplace(key, block);
  return own().at(*place);
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
