// In which order streams of a GPU see results, on streams that only keep records: torch's registry
// of devices gets one in place of CUDA.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdio>
#include <exception>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "expectations.h"

namespace {

using namespace rueda;
using namespace rueda::test;
using libtorch::detail::StreamOrder;
using Seen = std::set<std::string>;

const c10::Device device(c10::DeviceType::CUDA, 0);
constexpr c10::StreamId pool_stream = 1000;
std::map<c10::StreamId, Seen> seen;  // what each stream is ordered after
int events = 0;                      // alive
c10::StreamId current = 0;

c10::Stream stream(c10::StreamId number) {
  return c10::Stream(c10::Stream::UNSAFE, device, number);
}

struct Account : c10::impl::DeviceGuardImplInterface {
  static constexpr auto static_type = c10::DeviceType::CUDA;

  c10::DeviceType type() const override { return static_type; }
  c10::Device exchangeDevice(c10::Device /*next*/) const override { return device; }
  c10::Device getDevice() const override { return device; }
  void setDevice(c10::Device /*next*/) const override {}
  void uncheckedSetDevice(c10::Device /*next*/) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device /*of*/) const noexcept override { return stream(current); }
  c10::Stream getStreamFromGlobalPool(c10::Device /*of*/, bool /*is_high*/) const override {
    return stream(pool_stream);
  }
  c10::Stream exchangeStream(c10::Stream next) const noexcept override {
    return stream(std::exchange(current, next.id()));
  }
  // In later versions of torch only this is there to be overridden.
  virtual void* getStreamNativeHandle(const c10::Stream /*of*/) const { return nullptr; }

  void record(void** event, const c10::Stream& on, const c10::DeviceIndex /*of*/,
              const c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) {
      *event = new Seen;
      ++events;
    }
    *static_cast<Seen*>(*event) = seen[on.id()];
  }
  void block(void* event, const c10::Stream& waiting) const override {
    seen[waiting.id()].merge(Seen(*static_cast<Seen*>(event)));
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*of*/) const noexcept override {
    if (event == nullptr) return;
    delete static_cast<Seen*>(event);
    --events;
  }
};

void test_on_the_submitting_stream(const Handle& done) {
  seen.clear();
  StreamOrder order(device);
  order.settle(done, [] { seen[current].insert("copied"); });
  order.join();
  expect(seen == std::map<c10::StreamId, Seen>{{0, {"copied"}}}, "no other stream is involved");
}

void test_on_another_stream(const Handle& done) {
  seen.clear();
  StreamOrder order(device);
  {
    const c10::StreamGuard consumer(stream(7));
    order.settle(done, [] { seen[current].insert("copied"); });
  }
  expect(seen[7].contains("copied"), "the result is brought on the current stream");
  expect(seen[0].contains("copied"), "the submitting stream comes after");
  expect(!seen.contains(8), "others do not, before they ask");
  const c10::StreamGuard late(stream(8));
  order.join();
  expect(seen[8].contains("copied"), "whoever asks later comes after");
}

void test_an_error_can_be_followed_by_another_try(const Handle& done) {
  seen.clear();
  StreamOrder order(device);
  expect_throws<InvalidArgumentError>(
      [&] { order.settle(done, [] { throw InvalidArgumentError("no room"); }); }, "no room");
  order.settle(done, [] { seen[current].insert("copied"); });
  const c10::StreamGuard late(stream(8));
  order.join();
  expect(seen[8].contains("copied"), "the second try counts");
}

void test_aside(const Handle& done) {
  seen.clear();
  const StreamOrder order(device);
  expect(order.wait_aside(done).id() == pool_stream, "a stream that nobody else knows");
  expect(current == 0, "the current stream stays");
  expect(seen.empty(), "nothing is enqueued on it");
}

}  // namespace

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, Account)
}

int main() {
  try {
    init();
    const Handle done = barrier();
    done.wait();
    test_on_the_submitting_stream(done);
    test_on_another_stream(done);
    test_an_error_can_be_followed_by_another_try(done);
    test_aside(done);
    expect(events == 0, "no event is left behind");
    std::printf("passed\n");
    shutdown();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
