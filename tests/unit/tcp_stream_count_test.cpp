// Links are played by a function from the number of streams to a rate.
#include <catch2/catch.hpp>
#include <functional>

#include "tcp/stream_count.h"

namespace rueda::test::tcp_stream_count_test {

namespace {

using namespace std::chrono_literals;

struct Played {
  StreamCount count;
  Time now = Time(1h);
  std::uint64_t delivered = 0;
  bool waiting = true;

  void run(Duration how_long, const std::function<double(int)>& rate) {
    constexpr Duration step = 2ms;
    for (const Time end = now + how_long; now < end; now += step) {
      count.observe(now, delivered, count.wanted(), waiting);
      delivered += static_cast<std::uint64_t>(rate(count.wanted()) * to_seconds(step));
    }
  }
};

}  // namespace

TEST_CASE("one stream is enough where it fills the link") {
  Played link;
  link.run(5s, [](int) { return 118e6; });
  CHECK(link.count.wanted() == 1);
}

TEST_CASE("as many streams as it takes to fill a link that holds each one back") {
  for (const int needed : {2, 4, 8, 16}) {
    Played link;
    link.run(2s, [=](int streams) { return 15e6 * std::min(streams, needed); });
    CHECK(link.count.wanted() == needed);
  }
}

TEST_CASE("a stream that is slower than the others does not stop the search") {
  Played link;  // flows of 125 Mbit/s, the second of 31
  link.run(2s, [](int streams) { return 15.6e6 * streams - (streams > 1 ? 11.7e6 : 0); });
  CHECK(link.count.wanted() == 16);
}

TEST_CASE("what is not held back by streams is not measured") {
  Played link;
  link.waiting = false;
  link.run(5s, [](int streams) { return 15e6 * streams; });
  CHECK(link.count.wanted() == 1);
}

TEST_CASE("a link that changes is tried again") {
  Played link;
  link.run(2s, [](int) { return 100e6; });
  CHECK(link.count.wanted() == 1);
  link.run(60s, [](int streams) { return 10e6 * std::min(streams, 8); });
  CHECK(link.count.wanted() == 8);
}

}  // namespace rueda::test::tcp_stream_count_test
