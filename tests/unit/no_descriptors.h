// While it lives, this process can open no more descriptors.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <vector>

#include "core/unique_fd.h"

namespace rueda::test {

class NoDescriptors {
 public:
  NoDescriptors() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    // Lowers the limit first, which can be a billion.
    UniqueFd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    REQUIRE(first);
    rlimit few = before_;
    few.rlim_cur = static_cast<rlim_t>(first.get()) + 1;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
    while (first) {  // also uses up free ones below the limit
      held_.push_back(std::move(first));
      first.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    }
    REQUIRE(errno == EMFILE);
  }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
  std::vector<UniqueFd> held_;
};

}  // namespace rueda::test
