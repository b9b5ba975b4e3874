#include "onehost/readiness_table.h"

#include <bit>

namespace rueda {

namespace {

// Layout of a word, from its lowest bit. Rounds are distinguished modulo their width, which
// suffices: members are never more than one round apart.
constexpr int joined_bits = 11;
constexpr int round_bits = 12;
constexpr int off_bit = joined_bits + round_bits;
constexpr int plan_bit = off_bit + 1;
constexpr std::uint64_t joined_mask = (std::uint64_t{1} << joined_bits) - 1;
constexpr std::uint64_t round_mask = (std::uint64_t{1} << round_bits) - 1;
static_assert(ReadinessTable::max_members <= joined_mask);

// The tails of the log and the reports, and the number of cancelled plans.
constexpr std::size_t words_before = 3;

// For both the log and the reports, which have at most two unread entries per plan.
std::uint64_t log_size_for(int slots) {
  return std::bit_ceil(static_cast<std::uint64_t>(slots) * 2);
}

// An entry of the log: its position, so that it is not mistaken for one from an earlier pass
// through the ring; whether it belongs with the next entry; and the slot.
std::uint64_t pack_entry(std::uint64_t position, ReadinessTable::Entry entry) {
  return (position + 1) << 17 | std::uint64_t{entry.with_next} << 16 |
         static_cast<std::uint64_t>(entry.slot);
}

}  // namespace

std::size_t ReadinessTable::bytes(int slots) {
  return (words_before + static_cast<std::size_t>(slots)) * sizeof(Word) +
         2 * log_size_for(slots) * sizeof(std::atomic<std::uint64_t>);
}

ReadinessTable::ReadinessTable(std::byte* memory, int slots, int members, Decided decided)
    : calls_off_(reinterpret_cast<Word*>(memory)),
      words_(calls_off_ + words_before),
      log_{calls_off_ + 1, reinterpret_cast<std::atomic<std::uint64_t>*>(words_ + slots),
           log_size_for(slots)},
      reports_{calls_off_ + 2, log_.entries + log_.size, log_.size},
      members_(static_cast<std::uint64_t>(members)),
      decided_(decided) {}

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
    if (content.plan < plan.number) content = {plan.number, 0, 0, false};  // first round
    if (content.plan > plan.number || content.off) return Joined::off;
    const bool completes = content.joined + 1 == members_;
    const bool decides = completes && decided_ == Decided::here;
    content.round = decides ? round + 1 : round;
    content.joined = decides ? 0 : content.joined + 1;
    if (shared.compare_exchange_weak(seen, pack(content), std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
      if (completes) (decides ? log_ : reports_).enter({plan.slot});
      return completes ? Joined::completed : Joined::waiting;
    }
  }
}

ReadinessTable::State ReadinessTable::look(Plan plan, std::uint64_t round) const {
  const Content content = unpack(word(plan).load(std::memory_order_acquire));
  if (content.plan != plan.number) return State::gone;
  if (content.round != (round & round_mask)) return State::decided;
  if (!content.off) return State::open;
  return is_undecided(content) ? State::undecided : State::off;
}

bool ReadinessTable::is_cancelled(Plan plan) const {
  const Content content = unpack(word(plan).load(std::memory_order_acquire));
  return content.plan > plan.number || (content.plan == plan.number && content.off);
}

bool ReadinessTable::cancel(Plan plan, Audience audience) {
  std::atomic<std::uint64_t>& shared = word(plan);
  std::uint64_t seen = shared.load(std::memory_order_acquire);
  Content content{};
  bool undecided = false;
  do {
    content = unpack(seen);
    if (content.plan < plan.number) content = {plan.number, 0, 0, false};
    if (content.plan > plan.number || content.off) return false;
    undecided = is_undecided(content);
    content.off = true;
    if (!undecided) content.joined = 0;
  } while (!shared.compare_exchange_weak(seen, pack(content), std::memory_order_acq_rel,
                                         std::memory_order_acquire));
  if (!undecided) calls_off_->value.fetch_add(1, std::memory_order_acq_rel);
  const bool tells = undecided || audience == Audience::all_hosts;
  if (tells && decided_ == Decided::by_hosts) reports_.enter({plan.slot});
  return true;
}

std::uint64_t ReadinessTable::calls_off() const {
  return calls_off_->value.load(std::memory_order_acquire);
}

std::optional<ReadinessTable::Entry> ReadinessTable::read(std::uint64_t position) const {
  return log_.read(position);
}

// --- For the member that speaks for this host

std::optional<ReadinessTable::Report> ReadinessTable::read_report(std::uint64_t position) const {
  const auto entry = reports_.read(position);
  if (!entry) return std::nullopt;
  const Content content = unpack(words_[entry->slot].value.load(std::memory_order_acquire));
  return Report{{entry->slot, content.plan}, is_undecided(content), content.off};
}

// Only a cancellation can come between the load and the exchange.
void ReadinessTable::decide(Plan plan, bool with_next) {
  std::atomic<std::uint64_t>& shared = word(plan);
  std::uint64_t seen = shared.load(std::memory_order_acquire);
  Content content{};
  do {
    content = unpack(seen);
    ++content.round;
    content.joined = 0;
  } while (!shared.compare_exchange_weak(seen, pack(content), std::memory_order_acq_rel,
                                         std::memory_order_acquire));
  log_.enter({plan.slot, with_next});
}

void ReadinessTable::decide_cancelled(Plan plan) {
  std::atomic<std::uint64_t>& shared = word(plan);
  std::uint64_t seen = shared.load(std::memory_order_acquire);
  Content content{};
  do {
    content = unpack(seen);
    if (content.plan < plan.number) content = {plan.number, 0, 0, false};
    if (content.plan > plan.number || (content.off && !is_undecided(content))) return;
    content.off = true;
    content.joined = 0;
  } while (!shared.compare_exchange_weak(seen, pack(content), std::memory_order_acq_rel,
                                         std::memory_order_acquire));
  calls_off_->value.fetch_add(1, std::memory_order_acq_rel);
}

// --- Logs

void ReadinessTable::Log::enter(Entry entry) const {
  const std::uint64_t position = tail->value.fetch_add(1, std::memory_order_acq_rel);
  entries[position & (size - 1)].store(pack_entry(position, entry), std::memory_order_release);
}

std::optional<ReadinessTable::Entry> ReadinessTable::Log::read(std::uint64_t position) const {
  const std::uint64_t found = entries[position & (size - 1)].load(std::memory_order_acquire);
  const Entry entry{static_cast<int>(found & 0xffff), (found >> 16 & 1) != 0};
  if (found != pack_entry(position, entry)) return std::nullopt;
  return entry;
}

}  // namespace rueda
