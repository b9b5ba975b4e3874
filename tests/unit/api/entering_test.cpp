// A world that is formed beside the present one, with a simulated newcomer.
#include <atomic>
#include <catch2/catch.hpp>
#include <string>
#include <thread>

#include "api/bindings.h"
#include "coordinator/inherited_sets.h"
#include "membership/bootstrap_rendezvous.h"
#include "membership/world.h"
#include "ranks/engine_ranks.h"
#include "rueda/rueda.h"

namespace rueda::test::entering_test {

namespace {

constexpr const char* address = "unix:@rueda-entering-test";
constexpr const char* secret = "a secret that is long enough";

// Joins until the present world's process sets have been exchanged, then waits for `may_go`.
void come_halfway(const Options& options, std::atomic<bool>& is_there,
                  const std::atomic<bool>& may_go) {
  auto bootstrap = connect_rendezvous(address, 1, 2, soon(), secret);
  expect_ok(bootstrap.status(), "the newcomer's rendezvous");
  expect_ok(bootstrap.value()->allgather("past", std::string("0 -1"), soon()).status(), "the past");
  const auto world =
      form_world(*bootstrap.value(), options, {nullptr, Status(ErrorCode::unsupported, "")});
  expect_ok(world.status(), "the newcomer's world");
  expect_ok(inherit_sets(*bootstrap.value(), std::nullopt, soon()).status(), "the sets");
  is_there = true;
  await([&] { return may_go.load(); }, "the end of the test");
}

}  // namespace

TEST_CASE("who adds a set while a newcomer is let in has it where that one does not come") {
  init({{"transport", "shm"}});
  std::atomic<bool> is_there = false;
  std::atomic<bool> may_go = false;
  std::thread newcomer([&] {
    Options options;
    options.transport = "shm";
    come_halfway(options, is_there, may_go);
  });
  std::string why;
  std::thread entering([&] {
    try {
      enter_world({0, 2, address, secret, -1, {}});
    } catch (const InitializationError& error) {
      why = error.what();
    }
  });
  await([&] { return is_there.load(); }, "the newcomer");
  const Handle adding = begin_adding_process_set({0});
  await([] { return process_set_ids().size() == 2; }, "the set");
  CHECK_FALSE(adding.done());
  may_go = true;
  newcomer.join();
  entering.join();
  CHECK(why != "");
  const ProcessSet added = added_process_set(adding);
  float sum = 2;
  allreduce({&sum, {1}, DataType::float32}, &sum, {.process_set = added}).wait();
  CHECK(sum == 2);
  shutdown();
}

}  // namespace rueda::test::entering_test
