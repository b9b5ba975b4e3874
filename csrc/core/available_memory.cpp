#include "core/available_memory.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

namespace rueda {

namespace {

constexpr std::int64_t smallest_step = std::int64_t{2} << 20;

// How many ranks may check the limits at the same moment, before any of them uses more.
std::int64_t at_the_same_time() {
  return std::max<std::int64_t>(16, std::thread::hardware_concurrency());
}

std::optional<std::int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  if (file >> number) return number;  // "max" means no limit
  return std::nullopt;
}

// What the kernel reclaims before it kills a process: file caches and, where `stat` reports it,
// slab.
std::int64_t reclaimable_in(const std::string& stat, std::string_view prefix) {
  std::ifstream file(stat);
  std::string name;
  std::int64_t bytes = 0;
  std::int64_t sum = 0;
  while (file >> name >> bytes) {
    if (name.rfind(prefix, 0) != 0) continue;
    const std::string_view kind = std::string_view(name).substr(prefix.size());
    if (kind == "inactive_file" || kind == "active_file" || kind == "slab_reclaimable") {
      sum += bytes;
    }
  }
  return sum;
}

std::optional<std::int64_t> of_host(std::string_view what) {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::int64_t kibibytes = 0;
  std::string rest;
  while (file >> name >> kibibytes && std::getline(file, rest)) {
    if (name == what) return kibibytes * 1024;
  }
  return std::nullopt;
}

// What remains of one limit; empty if there is none, for which version 1 reports the largest number
// of pages.
std::optional<std::int64_t> left_of(const std::string& limit, const std::string& usage) {
  constexpr std::int64_t no_limit = std::int64_t{1} << 60;
  const auto most = number_in(limit);
  const auto used = number_in(usage);
  if (!most || !used || *most >= no_limit) return std::nullopt;
  return std::max<std::int64_t>(0, *most - *used);
}

// Version 2: swap has its own limit.
std::optional<std::int64_t> left_in(const std::string& folder, std::int64_t free_swap) {
  const auto left = left_of(folder + "/memory.max", folder + "/memory.current");
  if (!left) return std::nullopt;
  const auto swap = left_of(folder + "/memory.swap.max", folder + "/memory.swap.current");
  return *left + reclaimable_in(folder + "/memory.stat", "") +
         std::min(swap.value_or(free_swap), free_swap);
}

// Version 1: memory and swap may have a common limit.
std::optional<std::int64_t> left_in_first(const std::string& folder, std::int64_t free_swap) {
  const auto left = left_of(folder + "/memory.limit_in_bytes", folder + "/memory.usage_in_bytes");
  if (!left) return std::nullopt;
  const auto both =
      left_of(folder + "/memory.memsw.limit_in_bytes", folder + "/memory.memsw.usage_in_bytes");
  const std::int64_t with_swap = *left + free_swap;
  return std::min(with_swap, both.value_or(with_swap)) +
         reclaimable_in(folder + "/memory.stat", "total_");
}

std::optional<std::int64_t> left_with_swap() {
  return memory_within_limits(of_host("SwapFree:").value_or(0));
}

}  // namespace

std::optional<std::int64_t> memory_within_limits(std::int64_t free_swap,
                                                 const ControlGroupFiles& files) {
  std::optional<std::int64_t> least;
  for_each_control_group(files, "memory", [&](const std::string& folder, int version) {
    const auto left = version == 2 ? left_in(folder, free_swap) : left_in_first(folder, free_swap);
    if (left) least = std::min(least.value_or(*left), *left);
  });
  return least;
}

std::int64_t memory_to_spare() {
  return at_the_same_time() * smallest_step;
}

bool fits_within_limits(std::size_t bytes) {
  if (bytes == 0) return true;
  const auto left = left_with_swap();
  return !left || static_cast<std::int64_t>(bytes) <= *left - memory_to_spare();
}

std::size_t memory_step(std::size_t bytes) {
  if (bytes == 0) return 0;
  const auto left = left_with_swap();
  if (!left) return bytes;
  const std::int64_t share = *left / (2 * at_the_same_time());
  const std::int64_t step =
      std::min(static_cast<std::int64_t>(bytes),
               std::max(share / smallest_step * smallest_step, smallest_step));
  return step <= *left - memory_to_spare() ? static_cast<std::size_t>(step) : 0;
}

std::optional<std::int64_t> available_memory() {
  const auto host = of_host("MemAvailable:");
  const auto group = memory_within_limits();
  if (!host || !group) return host ? host : group;
  return std::min(*host, *group);
}

}  // namespace rueda
