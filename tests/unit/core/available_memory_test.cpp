#include "core/available_memory.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "unit/core/system_files.h"

namespace rueda::test::available_memory_test {
namespace {

std::optional<std::int64_t> left(const SystemFiles& files) {
  return memory_within_limits(files.control_groups(), files.path("meminfo"));
}

TEST_CASE("the limit that leaves least counts, of the group and of those around it") {
  const SystemFiles groups("0::/job/step/task");
  CHECK_FALSE(left(groups));
  groups.write("mount/job/step/task/memory.max", "max");
  groups.write("mount/job/step/task/memory.current", "100");
  CHECK_FALSE(left(groups));
  groups.write("mount/job/memory.max", "5000");
  groups.write("mount/job/memory.current", "3000");
  CHECK(left(groups) == 2000);
  groups.write("mount/job/step/task/memory.max", "1000");
  CHECK(left(groups) == 900);
  // What has been passed leaves nothing.
  groups.write("mount/job/memory.current", "6000");
  CHECK(left(groups) == 0);
}

TEST_CASE("caches of files, and what may be swapped out, count as room") {
  const SystemFiles groups("0::/");
  groups.write("mount/memory.max", "1000");
  groups.write("mount/memory.current", "900");
  groups.write("mount/memory.stat", "anon 300\ninactive_file 200\nactive_file 50\nshmem 80");
  CHECK(left(groups) == 350);
  groups.write("meminfo", "SwapFree: 4 kB");
  CHECK(left(groups) == 350 + 4096);
  groups.write("mount/memory.swap.max", "500");
  groups.write("mount/memory.swap.current", "100");
  CHECK(left(groups) == 350 + 400);
  groups.write("mount/memory.swap.max", "0");
  CHECK(left(groups) == 350);
}

TEST_CASE("memory control groups of version 1 have limits, too") {
  const SystemFiles groups("9:memory:/docker/x\n8:cpu:/y\n0::/");
  const std::string own = "mount/memory/docker/x/memory.";
  groups.write(own + "limit_in_bytes", "9223372036854771712");  // none
  groups.write(own + "usage_in_bytes", "900");
  CHECK_FALSE(left(groups));
  groups.write(own + "limit_in_bytes", "1000");
  groups.write(own + "stat", "inactive_file 7\ntotal_inactive_file 30\ntotal_active_file 5");
  CHECK(left(groups) == 135);
  groups.write("meminfo", "SwapFree: 1 kB");
  CHECK(left(groups) == 135 + 1024);
  groups.write(own + "memsw.limit_in_bytes", "1200");
  groups.write(own + "memsw.usage_in_bytes", "900");
  CHECK(left(groups) == 335);
}

TEST_CASE("a system without control groups has no such limit") {
  CHECK_FALSE(memory_within_limits({"/no/such/file", "/no/such/folder"}, "/no/such/file"));
  CHECK(available_memory());
}

TEST_CASE("nothing at all always fits") {
  CHECK(fits_within_limits(0));
}

}  // namespace
}  // namespace rueda::test::available_memory_test
