#include "core/available_memory.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "unit/core/system_files.h"

namespace rueda::test::available_memory_test {
namespace {

std::optional<std::int64_t> left(const SystemFiles& files, std::int64_t free_swap = 0) {
  return memory_within_limits(free_swap, files.control_groups());
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
  // Usage above the limit leaves no memory.
  groups.write("mount/job/memory.current", "6000");
  CHECK(left(groups) == 0);
}

TEST_CASE("what the kernel reclaims, and what may be swapped out, counts as room") {
  const SystemFiles groups("0::/");
  groups.write("mount/memory.max", "1000");
  groups.write("mount/memory.current", "900");
  groups.write("mount/memory.stat",
               "anon 300\ninactive_file 200\nactive_file 40\nslab_reclaimable 10\nshmem 80");
  CHECK(left(groups) == 350);
  CHECK(left(groups, 4096) == 350 + 4096);
  groups.write("mount/memory.swap.max", "500");
  groups.write("mount/memory.swap.current", "100");
  CHECK(left(groups, 4096) == 350 + 400);
  CHECK(left(groups, 7) == 350 + 7);
  groups.write("mount/memory.swap.max", "0");
  CHECK(left(groups, 4096) == 350);
}

TEST_CASE("memory control groups of version 1 have limits, too") {
  const SystemFiles groups("9:memory:/docker/x\n8:cpu:/y\n0::/");
  const std::string own = "mount/memory/docker/x/memory.";
  groups.write(own + "limit_in_bytes", "9223372036854771712");  // unlimited
  groups.write(own + "usage_in_bytes", "900");
  CHECK_FALSE(left(groups));
  groups.write(own + "limit_in_bytes", "1000");
  groups.write(own + "stat", "inactive_file 7\ntotal_inactive_file 30\ntotal_active_file 5");
  CHECK(left(groups) == 135);
  CHECK(left(groups, 1024) == 135 + 1024);
  groups.write(own + "memsw.limit_in_bytes", "1200");
  groups.write(own + "memsw.usage_in_bytes", "900");
  CHECK(left(groups, 1024) == 335);
}

TEST_CASE("a system without control groups has no such limit") {
  CHECK_FALSE(memory_within_limits(0, {"/no/such/file", "/no/such/folder"}));
  CHECK(available_memory());
}

TEST_CASE("nothing at all always fits, and takes no step") {
  CHECK(fits_within_limits(0));
  CHECK(memory_step(0) == 0);
}

TEST_CASE("a step is no more than what is asked for") {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{5} << 20}) {
    CHECK(memory_step(bytes) <= bytes);
  }
}

}  // namespace
}  // namespace rueda::test::available_memory_test
