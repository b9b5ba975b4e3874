#include "onehost/host_memory.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace rueda {

namespace {

// How long a rank that gives up waits for other ranks to stop accessing its tensors.
constexpr auto wait_timeout = std::chrono::seconds(20);

}  // namespace

HostMemory::HostMemory(const Bootstrap& bootstrap, RegisteredMemory& registered)
    : rank_(bootstrap.rank()),
      registered_memory_(&registered),
      control_(static_cast<std::size_t>(bootstrap.size())),
      registered_mappings_(control_.size()),
      registered_(control_.size()),
      remote_(control_.size()),
      processes_(control_.size()),
      events_(control_.size()) {
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    world_ranks_.push_back(bootstrap.world_rank(rank));
  }
}

HostMemory::~HostMemory() = default;

std::byte* HostMemory::publish(std::uint64_t key, std::size_t bytes, std::size_t populated,
                               ControlRoom* room) {
  return blocks_->publish(key, bytes, populated, room);
}

// The room keeps the memory that it is in alive.
std::shared_ptr<ControlRoom> HostMemory::reserve(const std::shared_ptr<HostMemory>& host,
                                                 std::span<const std::size_t> lengths) {
  auto room = host->blocks_->reserve(lengths);
  if (!room) return nullptr;
  struct Kept {
    std::shared_ptr<HostMemory> host;
    std::unique_ptr<ControlRoom> room;  // destroyed first
  };
  auto kept = std::make_shared<Kept>(Kept{host, std::move(room)});
  ControlRoom* const inner = kept->room.get();
  return {std::move(kept), inner};
}

std::byte* HostMemory::find(int rank, std::uint64_t key) const {
  const ControlMemory& control = control_[static_cast<std::size_t>(rank)];
  const std::uint64_t place = control.directory().find(key);
  return place == 0 ? nullptr : control.at(place);
}

void HostMemory::retire(std::uint64_t key, const std::vector<int>& members) {
  blocks_->retire(key, members);
}

void HostMemory::add(Visitor& visitor) {
  const std::lock_guard lock(visitors_mutex_);
  visitors_.insert(&visitor);
  if (end_of_waiting_.load() != Time::max()) visitor.give_up();  // registered too late
}

void HostMemory::remove(Visitor& visitor) {
  const std::lock_guard lock(visitors_mutex_);
  visitors_.erase(&visitor);
}

void HostMemory::give_up() {
  const std::lock_guard lock(visitors_mutex_);
  Time never = Time::max();
  end_of_waiting_.compare_exchange_strong(never, Clock::now() + wait_timeout);
  for (Visitor* const visitor : visitors_) visitor->give_up();
}

void HostMemory::give_up_on(int rank) {
  const std::lock_guard lock(visitors_mutex_);
  for (Visitor* const visitor : visitors_) {
    if (visitor->visits(rank)) visitor->give_up();
  }
}

Time HostMemory::end_of_waiting() const {
  return std::min<Time>(end_of_waiting_.load(), Clock::now() + wait_timeout);
}

Status HostMemory::read_from(int rank, void* local, std::uint64_t remote, std::size_t bytes) const {
  return read_memory(remote_[static_cast<std::size_t>(rank)], local, remote, bytes);
}

Status HostMemory::write_to(int rank, const void* local, std::uint64_t remote,
                            std::size_t bytes) const {
  return write_memory(remote_[static_cast<std::size_t>(rank)], local, remote, bytes);
}

bool HostMemory::has_ended(int rank) const {
  return processes_[static_cast<std::size_t>(rank)]->has_ended();
}

PeerEnd HostMemory::end_of(int rank) const {
  const auto& process = processes_[static_cast<std::size_t>(rank)];
  return {process->life_line(), [process] { return process->has_ended(); },
          [process] { return process->kill(); }};
}

}  // namespace rueda
