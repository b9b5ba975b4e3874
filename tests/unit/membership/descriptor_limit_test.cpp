// Raising the limit of open files for the descriptors that a world may need.
#include "membership/descriptor_limit.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "core/unique_fd.h"

namespace rueda::test::descriptor_limit_test {

namespace {

// Lowers the limit, and restores it at the end.
class FewDescriptors {
 public:
  FewDescriptors() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const UniqueFd next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    set({static_cast<rlim_t>(next.get()) + 100, before_.rlim_max});
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

  static rlim_t soft() {
    rlimit limit{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
    return limit.rlim_cur;
  }
  [[nodiscard]] rlim_t hard() const { return before_.rlim_max; }

 private:
  static void set(rlimit limit) { REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0); }
  rlimit before_{};
};

}  // namespace

TEST_CASE("ranks of other hosts have room as well") {
  const FewDescriptors few;
  const rlim_t before = FewDescriptors::soft();
  provide_remote_descriptors(1, 0, 1);
  CHECK(FewDescriptors::soft() == before);
  provide_remote_descriptors(1, 50, 1);
  CHECK(FewDescriptors::soft() >= std::min<rlim_t>(few.hard(), 600));
  provide_remote_descriptors(1, 50, 3);
  CHECK(FewDescriptors::soft() >= std::min<rlim_t>(few.hard(), 1000));
}

TEST_CASE("where the hard limit is too low for all of them, it is what they get") {
  const FewDescriptors few;
  if (few.hard() > 1'000'000'000) return;  // too high to be reached
  provide_remote_descriptors(1, 100'000'000, 1);
  CHECK(FewDescriptors::soft() == few.hard());
}

}  // namespace rueda::test::descriptor_limit_test
