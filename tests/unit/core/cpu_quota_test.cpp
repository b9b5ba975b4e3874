#include "core/cpu_quota.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace rueda::test::cpu_quota_test {
namespace {

namespace fs = std::filesystem;

// A system's files, as far as they are about this.
class Groups {
 public:
  explicit Groups(const std::string& own)
      : folder_(fs::temp_directory_path() / ("rueda-quota-" + std::to_string(::getpid()))) {
    fs::remove_all(folder_);
    write("groups", own);
  }
  ~Groups() { fs::remove_all(folder_); }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  void write(const std::string& name, const std::string& text) const {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text << '\n';
  }
  [[nodiscard]] std::optional<double> quota() const {
    return cpu_quota(folder_ / "groups", folder_ / "mount");
  }

 private:
  fs::path folder_;
};

TEST_CASE("the quota is that of the group that gets least") {
  const Groups groups("0::/pod/container");
  CHECK_FALSE(groups.quota());
  groups.write("mount/pod/container/cpu.max", "max 100000");
  CHECK_FALSE(groups.quota());
  groups.write("mount/pod/cpu.max", "400000 100000");
  CHECK(groups.quota() == 4.0);
  groups.write("mount/pod/container/cpu.max", "250000 100000");
  CHECK(groups.quota() == 2.5);
  groups.write("mount/pod/container/cpu.max", "700000 100000");
  CHECK(groups.quota() == 4.0);
}

TEST_CASE("a container's group may be the first that it sees") {
  for (const auto* path : {"0::/", "0::/../../elsewhere", "0::/kubepods/of/the/host"}) {
    const Groups groups(path);
    groups.write("mount/cpu.max", "150000 100000");
    CHECK(groups.quota() == 1.5);
  }
}

TEST_CASE("control groups of version 1 have quotas, too") {
  const Groups groups("5:memory:/a\n4:cpu,cpuacct:/docker/x\n3:cpuset:/b");
  groups.write("mount/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000");
  groups.write("mount/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "-1");
  CHECK_FALSE(groups.quota());
  groups.write("mount/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "300000");
  CHECK(groups.quota() == 3.0);
}

TEST_CASE("a system without control groups has no quota") {
  CHECK_FALSE(cpu_quota("/no/such/file", "/no/such/folder"));
}

}  // namespace
}  // namespace rueda::test::cpu_quota_test
