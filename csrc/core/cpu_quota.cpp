#include "core/cpu_quota.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace rueda {

namespace {

void take_least(std::optional<double>& least, double quota, double period) {
  if (quota > 0 && period > 0) least = std::min(least.value_or(quota / period), quota / period);
}

// Version 2: "max 100000", or "250000 100000".
void read_max(std::optional<double>& least, const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  double quota = 0;
  double period = 0;
  if (file >> quota >> period) take_least(least, quota, period);
}

// Version 1: a quota of -1 means none.
void read_cfs(std::optional<double>& least, const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us");
  std::ifstream period_file(folder + "/cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  if (quota_file >> quota && period_file >> period) take_least(least, quota, period);
}

}  // namespace

std::optional<double> cpu_quota(const ControlGroupFiles& files) {
  std::optional<double> least;
  for_each_control_group(files, "cpu", [&](const std::string& folder, int version) {
    version == 2 ? read_max(least, folder) : read_cfs(least, folder);
  });
  return least;
}

int ranks_within_cpu_quota() {
  const auto quota = cpu_quota();
  return quota ? std::max(1, static_cast<int>(std::min(*quota, 1e6))) : 0;
}

}  // namespace rueda
