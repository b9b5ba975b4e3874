#include "onehost/channel.h"

namespace rueda {

HostChannel::HostChannel(std::shared_ptr<HostMemory> host, std::vector<int> members, int rank,
                         std::uint64_t key, WokenBy woken_by, std::size_t slot, ControlRoom* room)
    : host_(std::move(host)),
      members_(std::move(members)),
      rank_(rank),
      key_(key),
      woken_by_(woken_by),
      slot_(round_up(slot, 64)),
      blocks_(members_.size(), nullptr),
      fences_for_others_(can_fence_for_others()) {
  blocks_[index(rank)] =
      reinterpret_cast<Block*>(host_->publish(key, bytes_for(slot), small_page, room));
  host_->add(*this);
}

HostChannel::~HostChannel() {
  host_->remove(*this);
  stop();
  host_->retire(key_, members_);
}

WakeWord& HostChannel::wake_word() const {
  return woken_by_ == WokenBy::rank ? host_->header(host_rank(rank_)).wake : block(rank_).wake;
}

bool HostChannel::find_all() {
  for (int member = 0; member < size(); ++member) {
    Block*& found = blocks_[index(member)];
    if (found == nullptr) found = reinterpret_cast<Block*>(host_->find(host_rank(member), key_));
    if (found == nullptr) return false;
  }
  open_ = true;
  return true;
}

std::byte* HostChannel::slot_of(int member) const {
  return reinterpret_cast<std::byte*>(&block(member)) + slots_at + parity() * slot_;
}

std::byte* HostChannel::table_of(int member) const {
  return reinterpret_cast<std::byte*>(&block(member)) + slots_at + 2 * slot_ +
         parity() * table_bytes;
}

namespace {

// The pages that hold [begin, begin + bytes).
bool populate_around(std::byte* begin, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(begin) / small_page * small_page;
  const auto end = round_up(reinterpret_cast<std::uintptr_t>(begin) + bytes, small_page);
  return populate(reinterpret_cast<std::byte*>(first), end - first);
}

}  // namespace

std::byte* HostChannel::grow_scratch(std::size_t bytes) {
  scratch_bytes_ = 0;
  scratch_.reset();
  scratch_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  scratch_bytes_ = bytes;
  return scratch_.get();
}

bool HostChannel::populate_slot_now(std::size_t bytes) {
  if (!populate_around(slot(), bytes)) return false;
  populated_[parity()].slot = bytes;
  return true;
}

bool HostChannel::populate_table_now() {
  populated_[parity()].has_table = populate_around(table(), table_bytes);
  return populated_[parity()].has_table;
}

void HostChannel::fill() {
  block(rank_).filled.store(sequence_, std::memory_order_release);
}

bool HostChannel::has_filled(int member) const {
  return block(member).filled.load(std::memory_order_acquire) >= sequence_;
}

void HostChannel::finish() {
  looking_at_ = 0;
  block(rank_).finished.store(sequence_, std::memory_order_release);
}

bool HostChannel::has_finished(int member) const {
  return block(member).finished.load(std::memory_order_acquire) >= sequence_;
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
    const Block* known = blocks_[index(member)];
    if (known == nullptr || known->arrivals[parity()].sequence.load() != sequence_) {
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

// Each member claims once in vain, so all know where the claims of the next collective begin.
void HostChannel::divide_work(std::uint64_t pieces) {
  pieces_ = pieces;
  first_claim_ = next_claims_;
  next_claims_ += pieces + members_.size();
}

std::optional<std::uint64_t> HostChannel::claim() {
  const std::uint64_t claimed =
      block(0).claims.fetch_add(1, std::memory_order_relaxed) - first_claim_;
  if (claimed < pieces_) return claimed;
  return std::nullopt;
}

void HostChannel::notify() {
  const bool fence = !host_->sleepers_fence();
  for (int member = 0; member < size(); ++member) {
    if (member == rank_ || blocks_[index(member)] == nullptr) continue;
    const WakeTarget target = woken_by_ == WokenBy::rank ? host_->wake_target(host_rank(member))
                                                         : WakeTarget{&block(member).wake};
    fence ? wake(target) : wake_without_fence(target);
  }
}

void HostChannel::stop() {
  block(rank_).stopped.store(1, std::memory_order_release);
}

// By whoever drives the engine, who drives the channels without a wake word of their own as well.
void HostChannel::give_up() {
  if (woken_by_ == WokenBy::rank) return stop();
  given_up_.store(true, std::memory_order_seq_cst);
  if (fences_for_others_) fence_for_others();
  if (!is_inside_.load(std::memory_order_seq_cst)) return stop();
  wake(block(rank_).wake);  // it leaves when it looks
}

bool HostChannel::has_stopped(int member) const {
  const Block* known = blocks_[index(member)];
  return known == nullptr || known->stopped.load(std::memory_order_acquire) != 0 ||
         host_->has_ended(host_rank(member));
}

}  // namespace rueda
