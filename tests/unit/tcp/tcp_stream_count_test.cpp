// Links are simulated by a function from the number of streams to a rate.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <map>

#include "tcp/stream_count.h"

namespace rueda::test::tcp_stream_count_test {

namespace {

using namespace std::chrono_literals;

struct Played {
  StreamCount count;
  Time now = Time(1h);
  std::uint64_t delivered = 0;
  bool waiting = true;
  Duration round_trip{};

  // Returns the most frequent stream count; others are tried now and then.
  int run(Duration how_long, const std::function<double(int)>& rate) {
    constexpr Duration step = 2ms;
    std::map<int, int> steps;
    for (const Time end = now + how_long; now < end; now += step) {
      ++steps[count.wanted()];
      count.observe(now, delivered, count.wanted(), waiting, round_trip);
      delivered += static_cast<std::uint64_t>(rate(count.wanted()) * to_seconds(step));
    }
    const auto most = std::max_element(steps.begin(), steps.end(), [](auto& one, auto& other) {
      return one.second < other.second;
    });
    return most->first;
  }
};

// Up to 8 flows, each limited to `cap` bytes a second and in slow start after being idle.
class SlowStart {
 public:
  SlowStart(Duration round_trip, double cap) : round_trip_(to_seconds(round_trip)), cap_(cap) {
    rates_.fill(first_window / round_trip_);
  }

  // One step of Played, which calls it once per step.
  double operator()(int streams) {
    const double growth = std::exp2(2e-3 / round_trip_);
    double total = 0;
    for (std::size_t each = 0; each < rates_.size(); ++each) {
      const bool is_used = each < static_cast<std::size_t>(streams);
      rates_[each] = is_used ? std::min(growth * rates_[each], cap_) : first_window / round_trip_;
      if (is_used) total += rates_[each];
    }
    return std::min(total, 8 * cap_);
  }

 private:
  static constexpr double first_window = 14.6e3;

  const double round_trip_;
  const double cap_;
  std::array<double, StreamCount::max_streams> rates_{};
};

}  // namespace

TEST_CASE("one stream is enough where it fills the link") {
  Played link;
  CHECK(link.run(5s, [](int) { return 118e6; }) == 1);
}

TEST_CASE("as many streams as it takes to fill a link that holds each one back") {
  for (const int needed : {2, 4, 8, 16}) {
    Played link;
    CHECK(link.run(5s, [=](int streams) { return 15e6 * std::min(streams, needed); }) == needed);
  }
}

TEST_CASE("a stream that is slower than the others does not stop the search") {
  Played link;  // flows of 125 Mbit/s, except the second with 31
  const auto rate = [](int streams) { return 15.6e6 * streams - (streams > 1 ? 11.7e6 : 0); };
  CHECK(link.run(5s, rate) == 16);
}

TEST_CASE("where no more streams can be had, those that are there go on") {
  Played link;
  const auto as_many = [](int streams) { return 15e6 * streams; };
  while (link.count.wanted() == 1) link.run(2ms, as_many);
  link.count.give_up_trial(link.now);
  CHECK(link.count.wanted() == 1);
  CHECK(link.run(1s, as_many) == 1);  // no new trial yet
  CHECK(link.run(20s, as_many) == StreamCount::max_streams);
}

TEST_CASE("streams that take long to find their speed are measured once they have") {
  for (const Duration round_trip : {20ms, 50ms, 100ms, 200ms}) {
    for (const double cap : {2.5e6, 12.5e6}) {
      Played link;
      link.round_trip = round_trip;
      SlowStart flows(round_trip, cap);
      const auto rate = [&](int streams) { return flows(streams); };
      link.run(60s, rate);
      CHECK(link.count.settled() == 8);
    }
  }
}

TEST_CASE("every interface has its stream from the start") {
  CHECK(StreamCount(2).wanted() == 2);
  CHECK(StreamCount(40).wanted() == StreamCount::max_streams);
}

TEST_CASE("what is not held back by streams is not measured") {
  Played link;
  link.waiting = false;
  CHECK(link.run(5s, [](int streams) { return 15e6 * streams; }) == 1);
}

TEST_CASE("a link that changes is tried again") {
  Played link;
  CHECK(link.run(2s, [](int) { return 100e6; }) == 1);
  CHECK(link.run(60s, [](int streams) { return 10e6 * std::min(streams, 8); }) == 8);
}

}  // namespace rueda::test::tcp_stream_count_test
