#include "core/cpu_quota.h"

#include <algorithm>
#include <fstream>

namespace rueda {

namespace {

void take_least(std::optional<double>& least, double quota, double period) {
  if (quota > 0 && period > 0) least = std::min(least.value_or(quota / period), quota / period);
}

// Of version 2: "max 100000", or "250000 100000".
void read_max(std::optional<double>& least, const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  double quota = 0;
  double period = 0;
  if (file >> quota >> period) take_least(least, quota, period);
}

// Of version 1: a quota of -1 is none.
void read_cfs(std::optional<double>& least, const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us");
  std::ifstream period_file(folder + "/cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  if (quota_file >> quota && period_file >> period) take_least(least, quota, period);
}

bool has_cpu(const std::string& controllers) {
  return ("," + controllers + ",").find(",cpu,") != std::string::npos;
}

}  // namespace

std::optional<double> cpu_quota(const std::string& groups, const std::string& mount) {
  std::optional<double> least;
  std::ifstream file(groups);
  std::string line;
  while (std::getline(file, line)) {  // number:controllers:/path
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && !has_cpu(controllers)) continue;
    // A container may not see the groups around its own, which is mounted as if it were the first.
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      if (controllers.empty()) {
        read_max(least, mount + path);
      } else {
        for (const auto* name : {"/cpu", "/cpu,cpuacct"}) read_cfs(least, mount + name + path);
      }
      if (path.find('/') == std::string::npos) break;
    }
  }
  return least;
}

int ranks_within_cpu_quota() {
  const auto quota = cpu_quota();
  return quota ? std::max(1, static_cast<int>(std::min(*quota, 1e6))) : 0;
}

}  // namespace rueda
