// Which algorithm suits which size, by made-up costs.
#include "onehost/cost_model.h"

#include <catch2/catch.hpp>
#include <string>

namespace rueda {
namespace {

// A straight line in ns, sampled at 2, 32 and `large_kib` KiB.
MeasuredCost line(double at_nothing, double per_kib, double large_kib) {
  return {at_nothing + 2 * per_kib, at_nothing + 32 * per_kib, at_nothing + large_kib * per_kib};
}

HostCosts costs_of(const MeasuredCost& flat, const MeasuredCost& staged, const MeasuredCost& direct,
                   double large_kib = 256) {
  HostCosts costs;
  costs.exchange = 500;
  costs.large_bytes = large_kib * 1024;
  costs.flat = flat;
  costs.staged = staged;
  costs.direct = direct;
  costs.registered = direct;
  return costs;
}

}  // namespace

TEST_CASE("two ranks whose memory the kernel reaches quickly need no parts") {
  const HostCosts costs = costs_of(line(500, 200, 256), line(3000, 250, 256), line(2000, 120, 256));
  CHECK(table_of(costs).to_string() == "flat:0-32K;direct:32K-");
  CHECK(policy_of(costs).flat_limit == 32 << 10);
}

TEST_CASE("where the kernel is slow, and copies of whole tensors too, they go in parts") {
  // As with 8 ranks on 16 processors.
  const HostCosts costs =
      costs_of(line(1000, 1400, 256), line(3000, 260, 256), line(20'000, 480, 256));
  CHECK(table_of(costs).to_string() == "flat:0-4K;staged:4K-");
  // Several tensors together cannot go in parts.
  CHECK(policy_of(costs).flat_limit == 32 << 10);
}

TEST_CASE("in parts up to where reaching for tensors is the quicker way") {
  SECTION("within what was measured") {
    const HostCosts costs =
        costs_of(line(1000, 1400, 512), line(3000, 260, 512), line(20'000, 160, 512), 512);
    CHECK(table_of(costs).to_string() == "flat:0-4K;staged:4K-256K;direct:256K-");
  }
  SECTION("before copies of whole tensors are given up") {
    const HostCosts costs =
        costs_of(line(1000, 400, 256), line(3000, 260, 256), line(20'000, 10, 256));
    CHECK(policy_of(costs).flat_limit == 64 << 10);
    CHECK(table_of(costs).to_string() == "flat:0-32K;staged:32K-128K;direct:128K-");
  }
  SECTION("beyond it only where huge pages cannot help") {
    const HostCosts costs =
        costs_of(line(1000, 1400, 256), line(3000, 300, 256), line(20'000, 320, 256));
    CHECK(table_of(costs).to_string() == "flat:0-4K;staged:4K-4M;direct:4M-");
  }
}

TEST_CASE("in parts where copies of whole tensors are best, but have no room") {
  // As with 2 ranks on 2 processors: 13, 14 and 22 us for 256 KiB.
  const auto with_direct = [](double per_kib) {
    return costs_of(line(500, 50, 512), line(1000, 52, 512), line(3000, per_kib, 512), 512);
  };
  CHECK(policy_of(with_direct(76)).flat_limit == 512 << 10);
  CHECK(table_of(with_direct(76)).to_string() == "flat:0-512K;staged:512K-");
  CHECK(table_of(with_direct(66)).to_string() == "flat:0-512K;staged:512K-4M;direct:4M-");
  CHECK(table_of(with_direct(54)).to_string() == "flat:0-512K;direct:512K-");
}

TEST_CASE("a gain that a measurement may feign is none") {
  const HostCosts costs =
      costs_of(line(1000, 300, 256), line(1000, 290, 256), line(5000, 290, 256));
  CHECK(table_of(costs).to_string().find("staged") == std::string::npos);
}

TEST_CASE("among so many ranks that there are no parts") {
  const HostCosts costs = costs_of(line(1000, 1400, 256), {}, line(20'000, 480, 256));
  CHECK(table_of(costs).to_string() == "flat:0-32K;direct:32K-");
}

}  // namespace rueda
