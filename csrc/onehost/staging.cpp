#include "onehost/staging.h"

#include <algorithm>
#include <bit>
#include <new>

namespace rueda {

namespace {

// How many rounds ahead a rank may be.
constexpr std::uint64_t rounds_of_room = 4;
constexpr std::size_t max_chunk = 32 << 10;
constexpr std::size_t shortest_chunk = 4 << 10;

}  // namespace

std::size_t Staging::max_chunk_bytes(int ranks) {
  const std::size_t room =
      (slot_bytes - data_at) / rounds_of_room / static_cast<std::size_t>(ranks);
  return std::min(max_chunk, std::bit_floor(room));
}

bool Staging::is_possible(int ranks) {
  return ranks > 1 && max_chunk_bytes(ranks) >= shortest_chunk;
}

bool Staging::suits(const HostPolicy& policy, std::size_t bytes, std::size_t tensors, int ranks) {
  return bytes <= policy.staged_limit && tensors == 1 && is_possible(ranks);
}

// Whole cache lines, and small enough to give every rank a chunk.
std::size_t Staging::chunk_bytes(int ranks, std::size_t bytes) {
  const auto size = static_cast<std::size_t>(ranks);
  return std::min(max_chunk_bytes(ranks), round_up(bytes / size + 1, 64));
}

Staging::Staging(HostChannel& channel, const Combiner& combine, std::size_t element,
                 const std::byte* input, std::byte* output, std::size_t bytes)
    : channel_(channel),
      combine_(combine),
      element_(element),
      input_(input),
      output_(output),
      bytes_(bytes),
      chunk_(chunk_bytes(channel.size(), bytes)),
      rounds_((bytes + chunk_ * static_cast<std::size_t>(channel.size()) - 1) /
              (chunk_ * static_cast<std::size_t>(channel.size()))),
      contributes_(static_cast<std::size_t>(channel.size()), true) {}

Staging::Progress& Staging::progress_of(int member) const {
  return *reinterpret_cast<Progress*>(channel_.memory().slot_of(member));
}

// No other rank reads this slot before all have arrived.
void Staging::begin() {
  given_ = combined_ = taken_ = 0;
  new (channel_.memory().slot()) Progress{};
}

bool Staging::have_all(Counter counter, std::uint64_t rounds) const {
  for (int member = 0; member < channel_.size(); ++member) {
    if (member == channel_.rank()) continue;
    if ((progress_of(member).*counter).load(std::memory_order_acquire) < rounds) return false;
  }
  return true;
}

bool Staging::has_room(Counter counter, std::uint64_t round) const {
  return round < rounds_of_room || have_all(counter, round - rounds_of_room + 1);
}

Staging::Chunk Staging::chunk_of(std::uint64_t round, int owner) const {
  const std::size_t index =
      static_cast<std::size_t>(round) * static_cast<std::size_t>(channel_.size()) +
      static_cast<std::size_t>(owner);
  const std::size_t first = std::min(bytes_, index * chunk_);
  return {first, std::min(chunk_, bytes_ - first)};
}

std::byte* Staging::place_of(int member, std::uint64_t round, int owner) const {
  const auto line =
      static_cast<std::size_t>(round % rounds_of_room) * static_cast<std::size_t>(channel_.size()) +
      static_cast<std::size_t>(owner);
  return channel_.memory().slot_of(member) + data_at + line * chunk_;
}

// Tries first the step that other ranks wait for longest.
bool Staging::advance() {
  if (taken_ < combined_ && have_all(&Progress::combined, taken_ + 1)) {
    take();
  } else if (combined_ < given_ && have_all(&Progress::given, combined_ + 1) &&
             has_room(&Progress::taken, combined_)) {
    combine();
  } else if (given_ < rounds_ && has_room(&Progress::combined, given_)) {
    give();
  } else {
    return false;
  }
  return true;
}

void Staging::give() {
  for (int owner = 0; owner < channel_.size() && input_ != nullptr; ++owner) {
    if (owner == channel_.rank()) continue;
    const Chunk chunk = chunk_of(given_, owner);
    copy_bytes(place_of(channel_.rank(), given_, owner), input_ + chunk.first, chunk.bytes,
               Stores::cached);
  }
  progress_of(channel_.rank()).given.store(++given_, std::memory_order_release);
}

void Staging::combine() {
  const int own = channel_.rank();
  const Chunk chunk = chunk_of(combined_, own);
  if (chunk.bytes > 0) {
    sources_.clear();
    targets_.clear();
    for (int member = 0; member < channel_.size(); ++member) {
      if (!contributes_[static_cast<std::size_t>(member)]) continue;
      sources_.push_back(member == own ? input_ + chunk.first : place_of(member, combined_, own));
    }
    if (output_ != nullptr) targets_.push_back(output_ + chunk.first);
    targets_.push_back(place_of(own, combined_, own));
    combine_(targets_, sources_, static_cast<std::int64_t>(chunk.bytes / element_), Stores::cached);
    combined_bytes_ += chunk.bytes;
  }
  progress_of(own).combined.store(++combined_, std::memory_order_release);
}

void Staging::take() {
  for (int owner = 0; owner < channel_.size() && output_ != nullptr; ++owner) {
    if (owner == channel_.rank()) continue;
    const Chunk chunk = chunk_of(taken_, owner);
    copy_bytes(output_ + chunk.first, place_of(owner, taken_, owner), chunk.bytes, Stores::cached);
  }
  progress_of(channel_.rank()).taken.store(++taken_, std::memory_order_release);
}

std::vector<int> Staging::awaited() const {
  std::vector<int> behind;
  for (int member = 0; member < channel_.size(); ++member) {
    if (member == channel_.rank()) continue;
    const Progress& progress = progress_of(member);
    if (progress.given.load() < given_ || progress.combined.load() < combined_ ||
        progress.taken.load() < taken_) {
      behind.push_back(member);
    }
  }
  return behind;
}

}  // namespace rueda
