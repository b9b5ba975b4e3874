#include "server/direct_part.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace rueda {

namespace {

// A thread that holds the mutex for longer has lost its processor. The request then goes to the
// owner, which handles it when it can.
constexpr std::chrono::microseconds direct_lock_limit{500};

}  // namespace

// This thread's access to the part; true while it has it.
class DirectPart::Work {
 public:
  explicit Work(SharedPart& part) : part_(part), lock_(part, direct_lock_limit) {}
  ~Work() {
    if (changes_) part_.is_changing.store(0, std::memory_order_release);
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  [[nodiscard]] explicit operator bool() const {
    return static_cast<bool>(lock_) && part_.state.load() == SharedPart::open &&
           part_.is_busy.load(std::memory_order_acquire) == 0 && part_.is_torn.load() == 0;
  }
  void begin_change() {
    changes_ = true;
    part_.is_changing.store(1);
  }

 private:
  SharedPart& part_;
  const SharedPartLock lock_;
  bool changes_ = false;
};

float DirectPart::factor_of(Addition& addition) const {
  const std::uint64_t version = part_.version.load();
  addition.staleness = version - std::min(version, addition.seen);
  return addition.by_staleness ? addition.factor / static_cast<float>(1 + addition.staleness)
                               : addition.factor;
}

bool DirectPart::read(std::int64_t begin, std::span<float> out, std::int64_t clock,
                      std::uint64_t& version) const {
  if (part_.least_clock.load(std::memory_order_acquire) < clock) return false;
  const Work work(part_);
  if (!work) return false;
  std::copy_n(floats(part_.values) + (begin - shape_.begin), out.size(), out.data());
  version = part_.version.load();
  return true;
}

bool DirectPart::write(std::int64_t begin, std::span<const float> values) const {
  Work work(part_);
  if (!work) return false;
  work.begin_change();
  std::copy(values.begin(), values.end(), floats(part_.values) + (begin - shape_.begin));
  return true;
}

bool DirectPart::add(std::int64_t begin, std::span<const float> delta, Addition& addition) const {
  Work work(part_);
  if (!work) return false;
  const float factor = factor_of(addition);
  float* const values = floats(part_.values) + (begin - shape_.begin);
  work.begin_change();
  rule_.apply({values, delta.size()}, states_ == 0 ? nullptr : values + shape_.count, shape_.count,
              delta.data(), factor);
  part_.version.fetch_add(1);
  return true;
}

bool DirectPart::read_rows(const Rows& rows, float* out, std::int64_t clock,
                           std::uint64_t& version) const {
  if (part_.least_clock.load(std::memory_order_acquire) < clock) return false;
  const Work work(part_);
  if (!work) return false;
  const RowIndex found = index();
  const auto width = static_cast<std::size_t>(shape_.width);
  for (std::size_t i = 0; i < rows.positions.size(); ++i) {
    if (i + rows_ahead < rows.positions.size()) found.prefetch(rows.at(i + rows_ahead));
    float* const target = out + rows.positions[i] * shape_.width;
    if (const RowSlot* const slot = found.find(rows.at(i))) {
      std::copy_n(floats(slot->where), width, target);
    } else {
      fill_initial(shape_.initial, rows.at(i), {target, width});
    }
  }
  version = part_.version.load();
  return true;
}

bool DirectPart::find_all(const Rows& rows, std::vector<float*>& places) const {
  const RowIndex found = index();
  places.resize(rows.positions.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (i + rows_ahead < places.size()) found.prefetch(rows.at(i + rows_ahead));
    const RowSlot* const slot = found.find(rows.at(i));
    if (slot == nullptr) return false;
    places[i] = floats(slot->where);
    __builtin_prefetch(places[i], 1);
  }
  return true;
}

bool DirectPart::write_rows(const Rows& rows, const float* values) const {
  Work work(part_);
  std::vector<float*> places;
  if (!work || !find_all(rows, places)) return false;
  work.begin_change();
  for (std::size_t i = 0; i < places.size(); ++i) {
    std::copy_n(values + rows.positions[i] * shape_.width, shape_.width, places[i]);
  }
  return true;
}

bool DirectPart::add_rows(const Rows& rows, const float* delta, Addition& addition) const {
  Work work(part_);
  std::vector<float*> places;
  if (!work || !find_all(rows, places)) return false;
  const float factor = factor_of(addition);
  const auto width = static_cast<std::size_t>(shape_.width);
  work.begin_change();
  for (std::size_t i = 0; i < places.size(); ++i) {
    rule_.apply({places[i], width}, places[i] + shape_.width, shape_.width,
                delta + rows.positions[i] * shape_.width, factor);
  }
  part_.version.fetch_add(1);
  return true;
}

}  // namespace rueda
