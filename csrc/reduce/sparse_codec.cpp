// A run with few nonzero elements: their number, and the place and value of each. If that needs
// more bytes than all values, those follow instead.
//
// Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017, and Lin et
// al., "Deep gradient compression", ICLR 2018, section 3.1: the largest magnitudes. Stich et al.,
// "Sparsified SGD with memory", NeurIPS 2018, definition 2.2: random ones.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "reduce/codecs.h"
#include "reduce/element.h"

namespace rueda {

namespace {

using Place = std::uint16_t;
static_assert(max_run == std::int64_t{1} << 16);

// Values of the head that do not stand for a number of elements.
constexpr std::uint32_t all_elements = 0xffffffff;
constexpr std::uint32_t no_finite_elements = 0xfffffffe;
constexpr std::size_t head_bytes = sizeof(std::uint32_t);
constexpr std::size_t entry_bytes = sizeof(Place) + sizeof(float);

constexpr std::uint32_t infinite = 0x7f800000;

std::uint32_t magnitude_of(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffff;
}

struct Entry {
  std::uint32_t magnitude;  // ordered like the numbers without their signs
  Place place;
};

// Of two equal magnitudes the first one wins, so that the choice is the same everywhere.
bool comes_first(const Entry& left, const Entry& right) {
  if (left.magnitude != right.magnitude) return left.magnitude > right.magnitude;
  return left.place < right.place;
}

// Counts magnitudes by their upper 11 bits: 8 of exponent, 3 of mantissa.
class Histogram {
 public:
  static constexpr int shift = 20;
  static constexpr std::size_t size = std::size_t{1} << (31 - shift);

  Histogram(const float* values, std::int64_t count) {
    // Two tables, since consecutive equal numbers would wait for each other's count.
    std::int64_t i = 0;
    for (; i + 1 < count; i += 2) {
      ++even_[magnitude_of(values[i]) >> shift];
      ++odd_[magnitude_of(values[i + 1]) >> shift];
    }
    if (i < count) ++even_[magnitude_of(values[i]) >> shift];
  }

  [[nodiscard]] bool has_infinite() const {
    for (std::size_t bucket = infinite >> shift; bucket < size; ++bucket) {
      if (of(bucket) != 0) return true;
    }
    return false;
  }

  // The lower bound of the bucket that contains the k-th largest magnitude.
  [[nodiscard]] std::uint32_t threshold(std::int64_t k) const {
    std::int64_t above = 0;
    std::size_t bucket = size;
    while (bucket > 0 && above < k) above += of(--bucket);
    return static_cast<std::uint32_t>(bucket) << shift;
  }

 private:
  [[nodiscard]] std::int64_t of(std::size_t bucket) const {
    return std::int64_t{even_[bucket]} + odd_[bucket];
  }

  std::array<std::uint32_t, size> even_{};
  std::array<std::uint32_t, size> odd_{};
};

// The places of the k largest magnitudes, in ascending order.
std::vector<Place> largest(const float* values, std::int64_t count, std::int64_t k,
                           const Histogram& histogram) {
  const std::uint32_t threshold = histogram.threshold(k);
  std::vector<Entry> candidates;
  candidates.reserve(static_cast<std::size_t>(2 * k));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = magnitude_of(values[i]);
    if (magnitude >= threshold) candidates.push_back({magnitude, static_cast<Place>(i)});
  }
  std::nth_element(candidates.begin(), candidates.begin() + (k - 1), candidates.end(), comes_first);
  std::vector<Place> places;
  places.reserve(static_cast<std::size_t>(k));
  for (std::int64_t i = 0; i < k; ++i) {
    places.push_back(candidates[static_cast<std::size_t>(i)].place);
  }
  std::sort(places.begin(), places.end());
  return places;
}

// SplitMix64 (Steele et al., OOPSLA 2014).
std::uint64_t mixed(std::uint64_t state) {
  state += 0x9e3779b97f4a7c15;
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
  state = (state ^ (state >> 27)) * 0x94d049bb133111eb;
  return state ^ (state >> 31);
}

// One place in each of k parts of about equal length.
std::vector<Place> random_places(const CodecRun& run, std::int64_t k) {
  std::vector<Place> places;
  places.reserve(static_cast<std::size_t>(k));
  const std::uint64_t stream = mixed(run.seed ^ mixed(static_cast<std::uint64_t>(run.first)));
  for (std::int64_t part = 0; part < k; ++part) {
    const std::int64_t begin = part * run.count / k;
    const std::int64_t end = (part + 1) * run.count / k;
    const std::uint64_t random = mixed(stream + static_cast<std::uint64_t>(part));
    const auto offset = random % static_cast<std::uint64_t>(end - begin);
    places.push_back(static_cast<Place>(begin + static_cast<std::int64_t>(offset)));
  }
  return places;
}

std::vector<Place> places_of_others_than_zero(const float* values, std::int64_t count) {
  std::vector<Place> places;
  for (std::int64_t i = 0; i < count; ++i) {
    if (magnitude_of(values[i]) != 0) places.push_back(static_cast<Place>(i));
  }
  return places;
}

class SparseCodec final : public Codec {
 public:
  SparseCodec(CodecKind kind, double fraction) : kind_(kind), fraction_(fraction) {}

  [[nodiscard]] std::size_t max_bytes(const CodecRun& run) const override {
    const std::int64_t entries = std::min(run.count, chosen_of(run.count) * run.partials);
    return head_bytes + std::min(static_cast<std::size_t>(entries) * entry_bytes, dense_bytes(run));
  }
  [[nodiscard]] bool has_fixed_size() const override { return false; }
  [[nodiscard]] bool encodes_own() const override { return true; }

  // A sum has at most as many elements as its parts together, and is written without a choice.
  std::size_t encode(std::byte* target, const float* values, const CodecRun& run) const override {
    if (run.count == 0) return write_head(target, 0);
    if (run.is_sum) {
      if (!are_finite(values, run.count)) return write_head(target, no_finite_elements);
      return write(target, values, run, places_of_others_than_zero(values, run.count));
    }
    const std::int64_t k = chosen_of(run.count);
    if (kind_ == CodecKind::random_k) {
      if (!are_finite(values, run.count)) return write_head(target, no_finite_elements);
      return write(target, values, run, random_places(run, k));
    }
    const Histogram histogram(values, run.count);
    if (histogram.has_infinite()) return write_head(target, no_finite_elements);
    return write(target, values, run, largest(values, run.count, k, histogram));
  }

  [[nodiscard]] Decoded decode(float* target, const std::byte* source, std::size_t size,
                               const CodecRun& run) const override {
    std::fill_n(target, run.count, 0.0F);
    return visit(source, size, run, target,
                 [&](std::int64_t place, float value) { target[place] = value; });
  }
  [[nodiscard]] Decoded decode_add(float* target, const std::byte* source, std::size_t size,
                                   const CodecRun& run) const override {
    return visit(source, size, run, target,
                 [&](std::int64_t place, float value) { target[place] += value; });
  }

 private:
  [[nodiscard]] std::int64_t chosen_of(std::int64_t count) const {
    const auto chosen =
        static_cast<std::int64_t>(std::ceil(fraction_ * static_cast<double>(count)));
    return std::clamp<std::int64_t>(chosen, std::min<std::int64_t>(count, 1), count);
  }
  static std::size_t dense_bytes(const CodecRun& run) {
    return static_cast<std::size_t>(run.count) * sizeof(float);
  }
  static bool are_finite(const float* values, std::int64_t count) {
    std::uint32_t found = 0;
    for (std::int64_t i = 0; i < count; ++i) found |= magnitude_of(values[i]) >= infinite ? 1 : 0;
    return found == 0;
  }
  static std::size_t write_head(std::byte* target, std::uint32_t head) {
    rueda::write(target, head);
    return head_bytes;
  }

  static std::size_t write(std::byte* target, const float* values, const CodecRun& run,
                           const std::vector<Place>& places) {
    if (places.size() * entry_bytes >= dense_bytes(run)) {
      std::memcpy(target + write_head(target, all_elements), values, dense_bytes(run));
      return head_bytes + dense_bytes(run);
    }
    write_head(target, static_cast<std::uint32_t>(places.size()));
    std::byte* place = target + head_bytes;
    std::byte* value = place + places.size() * sizeof(Place);
    if (!places.empty()) std::memcpy(place, places.data(), places.size() * sizeof(Place));
    for (const Place each : places) {
      rueda::write(value, values[each]);
      value += sizeof(float);
    }
    return head_bytes + places.size() * entry_bytes;
  }

  // Calls take(place, value) for each element that travels.
  template <class Take>
  static Decoded visit(const std::byte* source, std::size_t size, const CodecRun& run,
                       float* target, const Take& take) {
    if (size < head_bytes) return Decoded::malformed;
    const auto head = read<std::uint32_t>(source);
    source += head_bytes;
    size -= head_bytes;
    if (head == no_finite_elements) {
      std::fill_n(target, run.count, std::bit_cast<float>(0x7fc00000));
      return size == 0 ? Decoded::not_finite : Decoded::malformed;
    }
    if (head == all_elements) {
      if (size != dense_bytes(run)) return Decoded::malformed;
      for (std::int64_t i = 0; i < run.count; ++i) {
        take(i, read<float>(source + static_cast<std::size_t>(i) * sizeof(float)));
      }
      return Decoded::finite;
    }
    if (size != head * entry_bytes) return Decoded::malformed;
    const std::byte* const values = source + head * sizeof(Place);
    for (std::size_t i = 0; i < head; ++i) {
      const auto place = read<Place>(source + i * sizeof(Place));
      if (place >= run.count) return Decoded::malformed;
      take(place, read<float>(values + i * sizeof(float)));
    }
    return Decoded::finite;
  }

  CodecKind kind_;
  double fraction_;
};

}  // namespace

std::unique_ptr<const Codec> make_sparse_codec(CodecKind kind, double fraction) {
  return std::make_unique<SparseCodec>(kind, fraction);
}

}  // namespace rueda
