// The layout of Horovod's timelines, event by event.
#include "coordinator/timeline.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "core/strings.h"

namespace rueda::test {

namespace {

using Names = std::vector<std::string>;

Request request_of(const std::string& name, Collective collective = Collective::allreduce) {
  Request request;
  request.name = name;
  request.collective = collective;
  request.shape = {2, 3};
  return request;
}

std::string between(const std::string& text, const std::string& before, const std::string& after) {
  const auto at = text.find(before);
  if (at == std::string::npos) return "";
  const auto begin = at + before.size();
  return text.substr(begin, text.find(after, begin) - begin);
}

// What is written, but for names and order of the lanes: "B ALLREDUCE", "X 1", "E", with "@2 "
// where it is not the first lane's.
Names events_of(const TimelineStyle& style, const std::function<void(Timeline&)>& body) {
  const std::string path = str("timeline_test_", ::getpid(), ".json");
  Timeline timeline;
  REQUIRE(timeline.open(path, 0, style).ok());
  body(timeline);
  timeline.close();
  Names events;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::string kind = between(line, "\"ph\":\"", "\"");
    if (kind.empty() || kind == "M") continue;
    const std::string name = between(line, "\"name\":\"", "\"");
    const std::string lane = between(line, "\"pid\":", ",");
    events.push_back(
        str(lane > "1" ? str('@', lane, ' ') : "", kind, name.empty() ? "" : " ", name));
  }
  file.close();
  std::filesystem::remove(path);
  return events;
}

constexpr TimelineStyle horovod{TimelineFormat::horovod, false};

void ready(Timeline& timeline, const Request& request, std::vector<int> ranks, int set = 0) {
  timeline.write([&](TimelineWriter& to) { to.ready(set, request, ranks, Clock::now()); });
}
void started(Timeline& timeline, const Request& request, bool submitted, int set = 0) {
  std::optional<TimelineWriter::Wait> wait;
  if (submitted) wait = {Clock::now(), Clock::now(), Clock::now()};
  timeline.write([&](TimelineWriter& to) { to.started(set, request, wait, Clock::now()); });
}
void ended(Timeline& timeline, const Request& request,
           const std::vector<std::string_view>& phases = {}, int set = 0) {
  std::vector<Operation::Phase> done;
  for (const std::string_view phase : phases) done.push_back({phase, Clock::now(), Clock::now()});
  timeline.write(
      [&](TimelineWriter& to) { to.ended(set, request, Clock::now(), Clock::now(), done); });
}

}  // namespace

TEST_CASE("a packed all-reduce has Horovod's bars, with a tick for each rank that was ready") {
  const Names events = events_of(horovod, [](Timeline& timeline) {
    const Request request = request_of("x");
    ready(timeline, request, {1});
    ready(timeline, request, {0, 2});
    started(timeline, request, true);
    ended(timeline, request, {"PACK", "RING", "UNPACK"});
  });
  CHECK(events == Names{"B NEGOTIATE_ALLREDUCE", "X 1", "X 0", "X 2", "E", "B ALLREDUCE", "B QUEUE",
                        "E", "B MEMCPY_IN_FUSION_BUFFER", "E", "B MPI_ALLREDUCE", "E",
                        "B MEMCPY_OUT_FUSION_BUFFER", "E", "E"});
}

TEST_CASE("what nobody negotiated has this rank's tick alone") {
  const Names events = events_of(horovod, [](Timeline& timeline) {
    started(timeline, request_of("x", Collective::reduce_scatter), true);
    ended(timeline, request_of("x", Collective::reduce_scatter));
    started(timeline, request_of("y", Collective::broadcast), false);  // joined
  });
  CHECK(events == Names{"B NEGOTIATE_REDUCESCATTER", "X 0", "E", "B REDUCESCATTER", "B QUEUE", "E",
                        "B MPI_REDUCESCATTER", "E", "E", "@2 B NEGOTIATE_BROADCAST", "@2 E",
                        "@2 B BROADCAST"});
}

TEST_CASE("ranks that are ahead by a round wait for the bar of this one to end") {
  const Names events = events_of(horovod, [](Timeline& timeline) {
    started(timeline, request_of("x"), true);
    ready(timeline, request_of("x"), {1});
    ended(timeline, request_of("x"));
  });
  CHECK(events == Names{"B NEGOTIATE_ALLREDUCE", "X 0", "E", "B ALLREDUCE", "B QUEUE", "E",
                        "B MPI_ALLREDUCE", "E", "E", "B NEGOTIATE_ALLREDUCE", "X 1"});
}

TEST_CASE("rounds that overlap, as where this rank has joined, are written one after the other") {
  const Names once{"B NEGOTIATE_ALLREDUCE", "X 1", "E", "B ALLREDUCE", "B QUEUE", "E",
                   "B MPI_ALLREDUCE",       "E",   "E"};
  Names twice = once;
  twice.insert(twice.end(), once.begin(), once.end());
  const Names events = events_of(horovod, [](Timeline& timeline) {
    for (int round = 0; round < 2; ++round) {
      ready(timeline, request_of("x"), {1});
      started(timeline, request_of("x"), false);
    }
    for (int round = 0; round < 2; ++round) ended(timeline, request_of("x"));
  });
  CHECK(events == twice);
}

TEST_CASE("a timeline that is opened while a tensor is reduced has it once it ends") {
  const Names events = events_of(horovod, [](Timeline& timeline) {
    ended(timeline, request_of("x"));
    ready(timeline, request_of("y"), {1});  // of the next round already
    ended(timeline, request_of("y"));
  });
  CHECK(events == Names{"B ALLREDUCE", "B QUEUE", "E", "B MPI_ALLREDUCE", "E", "E",
                        "@2 B NEGOTIATE_ALLREDUCE", "@2 X 1"});
}

TEST_CASE("a negotiation ends with an answer, too, and a barrier moves nothing") {
  const Names events = events_of(horovod, [](Timeline& timeline) {
    ready(timeline, request_of("x", Collective::barrier), {0});
    const auto answer = [&](const std::string& name) {
      timeline.write([&](TimelineWriter& to) { to.answered(0, name, Clock::now()); });
    };
    timeline.write([&](TimelineWriter& to) { to.stalled(0, "x", Clock::now()); });
    answer("x");
    answer("x");
    answer("unheard of");
    ready(timeline, request_of("y", Collective::add_process_set), {0});
  });
  CHECK(events == Names{"B NEGOTIATE_BARRIER", "X 0", "i STALL", "E"});
}

TEST_CASE("process sets that use one name have lanes of their own") {
  const Names events = events_of(horovod, [](Timeline& timeline) {
    ready(timeline, request_of("x"), {0});
    ready(timeline, request_of("x"), {0}, 1);
  });
  CHECK(events == Names{"B NEGOTIATE_ALLREDUCE", "X 0", "@2 B NEGOTIATE_ALLREDUCE", "@2 X 0"});
}

TEST_CASE("cycles are marked only if asked for") {
  const auto mark = [](Timeline& timeline) {
    timeline.write([](TimelineWriter& to) { to.cycle(Clock::now()); });
  };
  CHECK(events_of(horovod, mark).empty());
  CHECK(events_of({TimelineFormat::horovod, true}, mark) == Names{"i CYCLE_START"});
  CHECK(events_of({TimelineFormat::rueda, true}, mark).empty());
}

}  // namespace rueda::test
