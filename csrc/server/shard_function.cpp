#include "server/shard_function.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/strings.h"

namespace rueda {

namespace {

using Bytes = std::vector<std::byte>;

template <class T>
void append(Bytes& bytes, const T& value) {
  bytes.resize(bytes.size() + sizeof value);
  std::memcpy(bytes.data() + (bytes.size() - sizeof value), &value, sizeof value);
}

template <class T>
T read(std::span<const std::byte> bytes) {
  if (bytes.size() != sizeof(T)) throw InvalidArgumentError("the argument has the wrong size");
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

template <class Fold>
Bytes folded(const ShardView& shard, double first, const Fold& fold) {
  double result = first;
  shard.visit([&](std::int64_t /*index*/, std::span<const float> values) {
    for (const float value : values) result = fold(result, static_cast<double>(value));
  });
  Bytes bytes;
  append(bytes, result);
  return bytes;
}

// A NaN is not lost: it makes the result NaN.
Bytes least(const ShardView& shard, std::span<const std::byte> /*arguments*/) {
  return folded(shard, std::numeric_limits<double>::infinity(),
                [](double a, double b) { return a < b || std::isnan(a) ? a : b; });
}

Bytes greatest(const ShardView& shard, std::span<const std::byte> /*arguments*/) {
  return folded(shard, -std::numeric_limits<double>::infinity(),
                [](double a, double b) { return a > b || std::isnan(a) ? a : b; });
}

Bytes sum(const ShardView& shard, std::span<const std::byte> /*arguments*/) {
  return folded(shard, 0, [](double a, double b) { return a + b; });
}

Bytes sum_of_squares(const ShardView& shard, std::span<const std::byte> /*arguments*/) {
  return folded(shard, 0, [](double a, double b) { return a + b * b; });
}

Bytes count(const ShardView& shard, std::span<const std::byte> /*arguments*/) {
  std::int64_t found = 0;
  shard.visit([&](std::int64_t /*index*/, std::span<const float> values) {
    found += static_cast<std::int64_t>(values.size());
  });
  Bytes bytes;
  append(bytes, found);
  return bytes;
}

// Indices of items and their values, the largest first, of equal ones the one with the least index:
// in a dense shard the elements with the largest magnitudes, of rows those with the largest norms.
// NaN counts as the largest value, as in a maximum.
Bytes top(const ShardView& shard, std::span<const std::byte> arguments) {
  const auto wanted = read<std::int64_t>(arguments);
  if (wanted < 0) throw InvalidArgumentError("a negative number of items");
  std::vector<std::pair<float, std::int64_t>> found;
  const auto is_before = [](const auto& a, const auto& b) {
    const bool is_nan = std::isnan(a.first);
    if (is_nan != std::isnan(b.first)) return is_nan;
    return a.first > b.first || ((is_nan || a.first == b.first) && a.second < b.second);
  };
  const auto take = [&](float magnitude, std::int64_t index) {
    found.emplace_back(magnitude, index);
    std::push_heap(found.begin(), found.end(), is_before);
    if (static_cast<std::int64_t>(found.size()) <= wanted) return;
    std::pop_heap(found.begin(), found.end(), is_before);
    found.pop_back();
  };
  shard.visit([&](std::int64_t index, std::span<const float> values) {
    if (!shard.has_rows()) {
      for (const float value : values) take(std::abs(value), index++);
      return;
    }
    double squares = 0;
    for (const float value : values) squares += static_cast<double>(value) * value;
    take(static_cast<float>(std::sqrt(squares)), index);
  });
  std::sort_heap(found.begin(), found.end(), is_before);
  Bytes bytes;
  for (const auto& [magnitude, index] : found) {
    append(bytes, index);
    append(bytes, magnitude);
  }
  return bytes;
}

struct Functions {
  std::mutex mutex;
  std::map<std::string, ShardFunction, std::less<>> by_name{
      {"min", least},   {"max", greatest}, {"sum", sum}, {"sum_of_squares", sum_of_squares},
      {"count", count}, {"top", top}};
};

// Leaked on purpose: the engine may still be working while the process exits.
Functions& functions() {
  static auto* instance = new Functions;
  return *instance;
}

}  // namespace

const ShardFunction* find_shard_function(std::string_view name) {
  const std::lock_guard lock(functions().mutex);
  const auto found = functions().by_name.find(name);
  return found == functions().by_name.end() ? nullptr : &found->second;
}

void register_shard_function(const std::string& name, ShardFunction function) {
  if (name.empty() || !function) {
    throw InvalidArgumentError("a shard function needs a name and a function");
  }
  const std::lock_guard lock(functions().mutex);
  if (!functions().by_name.emplace(name, std::move(function)).second) {
    throw InvalidArgumentError(str("a shard function '", name, "' is already registered"));
  }
}

}  // namespace rueda
