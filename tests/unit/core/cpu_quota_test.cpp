#include "core/cpu_quota.h"

#include <catch2/catch.hpp>
#include <optional>

#include "unit/core/system_files.h"

namespace rueda::test::cpu_quota_test {
namespace {

std::optional<double> quota(const SystemFiles& files) {
  return cpu_quota(files.control_groups());
}

TEST_CASE("the quota is that of the group that gets least") {
  const SystemFiles groups("0::/pod/container");
  CHECK_FALSE(quota(groups));
  groups.write("mount/pod/container/cpu.max", "max 100000");
  CHECK_FALSE(quota(groups));
  groups.write("mount/pod/cpu.max", "400000 100000");
  CHECK(quota(groups) == 4.0);
  groups.write("mount/pod/container/cpu.max", "250000 100000");
  CHECK(quota(groups) == 2.5);
  groups.write("mount/pod/container/cpu.max", "700000 100000");
  CHECK(quota(groups) == 4.0);
}

TEST_CASE("a container's group may be the first that it sees") {
  for (const auto* path : {"0::/", "0::/../../elsewhere", "0::/kubepods/of/the/host"}) {
    const SystemFiles groups(path);
    groups.write("mount/cpu.max", "150000 100000");
    CHECK(quota(groups) == 1.5);
  }
}

TEST_CASE("control groups of version 1 have quotas, too") {
  const SystemFiles groups("5:memory:/a\n4:cpu,cpuacct:/docker/x\n3:cpuset:/b");
  groups.write("mount/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000");
  groups.write("mount/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "-1");
  CHECK_FALSE(quota(groups));
  groups.write("mount/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "300000");
  CHECK(quota(groups) == 3.0);
}

TEST_CASE("a system without control groups has no quota") {
  CHECK_FALSE(cpu_quota({"/no/such/file", "/no/such/folder"}));
}

}  // namespace
}  // namespace rueda::test::cpu_quota_test
