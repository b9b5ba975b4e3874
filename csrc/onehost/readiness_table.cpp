#include "onehost/readiness_table.h"

#include <bit>

namespace rueda {

namespace {

// A word, from its lowest bit. Rounds are told apart modulo their width, which is enough: members
// are never more than one round apart.
constexpr int joined_bits = 11;
constexpr int round_bits = 12;
constexpr int off_bit = joined_bits + round_bits;
constexpr int plan_bit = off_bit + 1;
constexpr std::uint64_t joined_mask = (std::uint64_t{1} << joined_bits) - 1;
constexpr std::uint64_t round_mask = (std::uint64_t{1} << round_bits) - 1;
static_assert(ReadinessTable::max_members <= joined_mask);

constexpr std::size_t words_before = 2;  // the log's tail, and the number of plans cancelled

std::uint64_t log_size_for(int slots) {
  return std::bit_ceil(static_cast<std::uint64_t>(slots) * 2);
}

// An entry of the log: where it stands, so that it is not taken for one of an earlier time round
// the ring, and the slot.
std::uint64_t entry(std::uint64_t position, int slot) {
  return (position + 1) << 16 | static_cast<std::uint64_t>(slot);
}

}  // namespace

std::size_t ReadinessTable::bytes(int slots) {
  return (words_before + static_cast<std::size_t>(slots)) * sizeof(Word) +
         log_size_for(slots) * sizeof(std::atomic<std::uint64_t>);
}

ReadinessTable::ReadinessTable(std::byte* memory, int slots, int members)
    : tail_(reinterpret_cast<Word*>(memory)),
      calls_off_(tail_ + 1),
      words_(tail_ + words_before),
      log_(reinterpret_cast<std::atomic<std::uint64_t>*>(words_ + slots)),
      log_size_(log_size_for(slots)),
      members_(static_cast<std::uint64_t>(members)) {}

ReadinessTable::Content ReadinessTable::unpack(std::uint64_t value) {
  return {value >> plan_bit, value >> joined_bits & round_mask, value & joined_mask,
          (value >> off_bit & 1) != 0};
}

std::uint64_t ReadinessTable::pack(const Content& content) {
  return content.plan << plan_bit | std::uint64_t{content.off} << off_bit |
         (content.round & round_mask) << joined_bits | content.joined;
}

std::atomic<std::uint64_t>& ReadinessTable::word(Plan plan) const {
  return words_[plan.slot].value;
}

ReadinessTable::Joined ReadinessTable::join(Plan plan, std::uint64_t round) {
  std::atomic<std::uint64_t>& shared = word(plan);
  std::uint64_t seen = shared.load(std::memory_order_acquire);
  for (;;) {
    Content content = unpack(seen);
    if (content.plan < plan.number) content = {plan.number, 0, 0, false};  // its first round
    if (content.plan > plan.number || content.off) return Joined::off;
    const bool completes = content.joined + 1 == members_;
    content.round = completes ? round + 1 : round;
    content.joined = completes ? 0 : content.joined + 1;
    if (shared.compare_exchange_weak(seen, pack(content), std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
      if (completes) enter(plan.slot);
      return completes ? Joined::completed : Joined::waiting;
    }
  }
}

void ReadinessTable::enter(int slot) {
  const std::uint64_t position = tail_->value.fetch_add(1, std::memory_order_acq_rel);
  log_[position & (log_size_ - 1)].store(entry(position, slot), std::memory_order_release);
}

ReadinessTable::State ReadinessTable::look(Plan plan, std::uint64_t round) const {
  const Content content = unpack(word(plan).load(std::memory_order_acquire));
  if (content.plan != plan.number) return State::gone;
  if (content.round != (round & round_mask)) return State::decided;
  return content.off ? State::off : State::open;
}

bool ReadinessTable::is_cancelled(Plan plan) const {
  const Content content = unpack(word(plan).load(std::memory_order_acquire));
  return content.plan > plan.number || (content.plan == plan.number && content.off);
}

bool ReadinessTable::cancel(Plan plan) {
  std::atomic<std::uint64_t>& shared = word(plan);
  std::uint64_t seen = shared.load(std::memory_order_acquire);
  Content content{};
  do {
    content = unpack(seen);
    if (content.plan < plan.number) content = {plan.number, 0, 0, false};
    if (content.plan > plan.number || content.off) return false;
    content.off = true;
    content.joined = 0;
  } while (!shared.compare_exchange_weak(seen, pack(content), std::memory_order_acq_rel,
                                         std::memory_order_acquire));
  calls_off_->value.fetch_add(1, std::memory_order_acq_rel);
  return true;
}

std::uint64_t ReadinessTable::calls_off() const {
  return calls_off_->value.load(std::memory_order_acquire);
}

std::optional<int> ReadinessTable::read(std::uint64_t position) const {
  const std::uint64_t found = log_[position & (log_size_ - 1)].load(std::memory_order_acquire);
  const int slot = static_cast<int>(found & 0xffff);
  if (found != entry(position, slot)) return std::nullopt;
  return slot;
}

}  // namespace rueda
