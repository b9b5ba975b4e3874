#include "core/deferred_release.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <thread>

namespace rueda::test::deferred_release_test {
namespace {

// Notes in which thread it is destroyed.
class Heavy {
 public:
  explicit Heavy(std::atomic<std::thread::id>& destroyed_by) : destroyed_by_(destroyed_by) {}
  ~Heavy() { destroyed_by_ = std::this_thread::get_id(); }
  Heavy(const Heavy&) = delete;
  Heavy& operator=(const Heavy&) = delete;

 private:
  std::atomic<std::thread::id>& destroyed_by_;
};

TEST_CASE("what is released later is destroyed by another thread, without being asked again") {
  std::atomic<std::thread::id> destroyed_by;
  DeferredRelease later;
  later.take(std::make_shared<Heavy>(destroyed_by));
  while (destroyed_by.load() == std::thread::id()) std::this_thread::yield();
  CHECK(destroyed_by.load() != std::this_thread::get_id());
}

TEST_CASE("what was taken is gone once it is finished, or replaced, or with its owner") {
  std::atomic<std::thread::id> first;
  std::atomic<std::thread::id> second;
  std::atomic<std::thread::id> third;
  {
    DeferredRelease later;
    later.finish();
    later.take(std::make_shared<Heavy>(first));
    later.take(std::make_shared<Heavy>(second));
    CHECK(first.load() != std::thread::id());
    later.finish();
    CHECK(second.load() != std::thread::id());
    later.take(std::make_shared<Heavy>(third));
  }
  CHECK(third.load() != std::thread::id());
}

TEST_CASE("others who hold it keep it") {
  std::atomic<std::thread::id> destroyed_by;
  auto held = std::make_shared<Heavy>(destroyed_by);
  DeferredRelease later;
  later.take(held);
  later.finish();
  CHECK(destroyed_by.load() == std::thread::id());
  held.reset();
  CHECK(destroyed_by.load() == std::this_thread::get_id());
}

}  // namespace
}  // namespace rueda::test::deferred_release_test
