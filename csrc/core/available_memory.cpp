#include "core/available_memory.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

namespace rueda {

namespace {

std::optional<std::int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  if (file >> number) return number;  // "max" is none
  return std::nullopt;
}

// Memory of cached files, which the kernel reclaims on demand.
std::int64_t caches_in(const std::string& path, std::string_view prefix) {
  std::ifstream file(path);
  std::string name;
  std::int64_t bytes = 0;
  std::int64_t caches = 0;
  while (file >> name >> bytes) {
    if (name.rfind(prefix, 0) != 0) continue;
    const std::string_view kind = std::string_view(name).substr(prefix.size());
    if (kind == "inactive_file" || kind == "active_file") caches += bytes;
  }
  return caches;
}

std::optional<std::int64_t> of_host(std::string_view what, const std::string& path) {
  std::ifstream file(path);
  std::string name;
  std::int64_t kibibytes = 0;
  std::string rest;
  while (file >> name >> kibibytes && std::getline(file, rest)) {
    if (name == what) return kibibytes * 1024;
  }
  return std::nullopt;
}

// What remains of one limit; empty if there is none. Version 1 says that with the largest number of
// pages.
std::optional<std::int64_t> left_of(const std::string& limit, const std::string& usage) {
  constexpr std::int64_t no_limit = std::int64_t{1} << 60;
  const auto most = number_in(limit);
  const auto used = number_in(usage);
  if (!most || !used || *most >= no_limit) return std::nullopt;
  return std::max<std::int64_t>(0, *most - *used);
}

// For version 2, where swap has a limit of its own.
std::optional<std::int64_t> left_in(const std::string& folder, std::int64_t free_swap) {
  const auto left = left_of(folder + "/memory.max", folder + "/memory.current");
  if (!left) return std::nullopt;
  const auto swap = left_of(folder + "/memory.swap.max", folder + "/memory.swap.current");
  return *left + caches_in(folder + "/memory.stat", "") +
         std::min(swap.value_or(free_swap), free_swap);
}

// For version 1, where memory and swap may have a common limit.
std::optional<std::int64_t> left_in_first(const std::string& folder, std::int64_t free_swap) {
  const auto left = left_of(folder + "/memory.limit_in_bytes", folder + "/memory.usage_in_bytes");
  if (!left) return std::nullopt;
  const auto both =
      left_of(folder + "/memory.memsw.limit_in_bytes", folder + "/memory.memsw.usage_in_bytes");
  const std::int64_t with_swap = *left + free_swap;
  return std::min(with_swap, both.value_or(with_swap)) +
         caches_in(folder + "/memory.stat", "total_");
}

}  // namespace

std::optional<std::int64_t> memory_within_limits(const ControlGroupFiles& files,
                                                 const std::string& host) {
  std::optional<std::int64_t> free_swap;
  std::optional<std::int64_t> least;
  for_each_control_group(files, "memory", [&](const std::string& folder, int version) {
    if (!free_swap) free_swap = of_host("SwapFree:", host).value_or(0);
    const auto left =
        version == 2 ? left_in(folder, *free_swap) : left_in_first(folder, *free_swap);
    if (left) least = std::min(least.value_or(*left), *left);
  });
  return least;
}

bool fits_within_limits(std::size_t bytes) {
  if (bytes == 0) return true;
  const auto left = memory_within_limits();
  return !left || static_cast<std::int64_t>(bytes) <= *left - memory_to_spare;
}

std::optional<std::int64_t> available_memory() {
  const auto host = of_host("MemAvailable:", "/proc/meminfo");
  const auto group = memory_within_limits();
  if (!host || !group) return host ? host : group;
  return std::min(*host, *group);
}

}  // namespace rueda
