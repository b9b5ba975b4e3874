#include "core/available_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace rueda {

namespace {

std::optional<std::int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  if (file >> number) return number;  // "max" is none
  return std::nullopt;
}

// Of files that the kernel keeps in memory while nobody wants it.
std::int64_t caches_in(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  std::int64_t bytes = 0;
  std::int64_t caches = 0;
  while (file >> name >> bytes) {
    if (name == "inactive_file" || name == "active_file") caches += bytes;
  }
  return caches;
}

std::optional<std::int64_t> of_host() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::int64_t kibibytes = 0;
  std::string rest;
  while (file >> name >> kibibytes && std::getline(file, rest)) {
    if (name == "MemAvailable:") return kibibytes * 1024;
  }
  return std::nullopt;
}

std::optional<std::int64_t> of_control_group() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) != 0) continue;
    const std::string folder = "/sys/fs/cgroup" + line.substr(3);
    const auto most = number_in(folder + "/memory.max");
    const auto used = number_in(folder + "/memory.current");
    if (!most || !used) return std::nullopt;
    return std::max<std::int64_t>(0, *most - *used + caches_in(folder + "/memory.stat"));
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> available_memory() {
  const auto host = of_host();
  const auto group = of_control_group();
  if (!host || !group) return host ? host : group;
  return std::min(*host, *group);
}

}  // namespace rueda
