#include "onehost/channel.h"

namespace rueda {

namespace {

// Populates the pages that hold [begin, begin + bytes).
bool populate_around(std::byte* begin, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(begin) / small_page * small_page;
  const auto end = round_up(reinterpret_cast<std::uintptr_t>(begin) + bytes, small_page);
  return populate(reinterpret_cast<std::byte*>(first), end - first);
}

}  // namespace

// --- Layout

ChannelMemory::ChannelMemory(HostMemory& host, const std::vector<int>& members, int rank,
                             std::uint64_t key, std::size_t slot, ControlRoom* room)
    : host_(host),
      members_(members),
      rank_(rank),
      key_(key),
      slot_(round_up(slot, 64)),
      flags_(members.size(), nullptr) {
  flags_[static_cast<std::size_t>(rank)] =
      reinterpret_cast<Flags*>(host_.publish(key, bytes_for(slot), small_page, room));
}

ChannelMemory::~ChannelMemory() {
  host_.retire(key_, members_);
}

bool ChannelMemory::find_all() {
  for (std::size_t member = 0; member < members_.size(); ++member) {
    Flags*& found = flags_[member];
    if (found == nullptr) found = reinterpret_cast<Flags*>(host_.find(members_[member], key_));
    if (found == nullptr) return false;
  }
  return true;
}

bool ChannelMemory::populate_slot_now(std::size_t bytes) {
  if (!populate_around(slot(), bytes)) return false;
  populated_[half_].slot = bytes;
  return true;
}

bool ChannelMemory::populate_table_now() {
  populated_[half_].has_table = populate_around(table(), table_bytes);
  return populated_[half_].has_table;
}

// --- One collective after the other

HostChannel::HostChannel(std::shared_ptr<HostMemory> host, std::vector<int> members, int rank,
                         std::uint64_t key, WokenBy woken_by, std::size_t slot, ControlRoom* room)
    : host_(std::move(host)),
      members_(std::move(members)),
      rank_(rank),
      woken_by_(woken_by),
      memory_(*host_, members_, rank, key, slot, room),
      claims_(size()) {
  host_->add(*this);
}

HostChannel::~HostChannel() {
  host_->remove(*this);
  stop();
}

WakeWord& HostChannel::wake_word() const {
  return woken_by_ == WokenBy::rank ? host_->header(host_rank(rank_)).wake
                                    : memory_.flags(rank_).wake;
}

void HostChannel::fill() {
  memory_.flags(rank_).filled.store(sequence_, std::memory_order_release);
}

bool HostChannel::has_filled(int member) const {
  return memory_.flags(member).filled.load(std::memory_order_acquire) >= sequence_;
}

void HostChannel::finish() {
  looking_at_ = 0;
  memory_.flags(rank_).finished.store(sequence_, std::memory_order_release);
}

bool HostChannel::has_finished(int member) const {
  return memory_.flags(member).finished.load(std::memory_order_acquire) >= sequence_;
}

bool HostChannel::all_finished() {
  for (; looking_at_ < size(); ++looking_at_) {
    if (looking_at_ != rank_ && !has_finished(looking_at_)) return false;
  }
  return true;
}

std::vector<int> HostChannel::not_arrived() const {
  std::vector<int> missing;
  for (int member = 0; member < size(); ++member) {
    if (memory_.find(member) == nullptr ||
        memory_.arrival_of(member).sequence.load() != sequence_) {
      missing.push_back(member);
    }
  }
  return missing;
}

std::vector<int> HostChannel::not_finished() const {
  std::vector<int> missing;
  for (int member = 0; member < size(); ++member) {
    if (!has_finished(member)) missing.push_back(member);
  }
  return missing;
}

WorkClaims& HostChannel::divide_work(std::uint64_t pieces) {
  claims_.begin(memory_.flags(0).claims, pieces);
  return claims_;
}

void HostChannel::notify() {
  const bool fence = !host_->sleepers_fence();
  for (int member = 0; member < size(); ++member) {
    if (member == rank_ || memory_.find(member) == nullptr) continue;
    const WakeTarget target = woken_by_ == WokenBy::rank ? host_->wake_target(host_rank(member))
                                                         : WakeTarget{&memory_.flags(member).wake};
    fence ? wake(target) : wake_without_fence(target);
  }
}

void HostChannel::stop() {
  memory_.flags(rank_).stopped.store(1, std::memory_order_release);
}

// Called by the thread that drives the engine and thus all channels without their own wake word.
void HostChannel::give_up() {
  if (woken_by_ == WokenBy::rank) return stop();
  if (gate_.close()) return stop();
  wake(memory_.flags(rank_).wake);  // it leaves when it next checks
}

bool HostChannel::has_stopped(int member) const {
  const ChannelMemory::Flags* known = memory_.find(member);
  return known == nullptr || known->stopped.load(std::memory_order_acquire) != 0 ||
         host_->has_ended(host_rank(member));
}

}  // namespace rueda
