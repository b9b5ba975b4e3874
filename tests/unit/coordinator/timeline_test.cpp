// The timelines, event by event.
#include "coordinator/timeline.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/trace_file.h"
#include "core/strings.h"

namespace rueda::test::timeline_test {

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

// The events, without the lanes' names and order: "B ALLREDUCE", "X 1", "E", prefixed with "@2 "
// if not in the first lane.
Names events_of(const TimelineStyle& style, const std::function<void(Timeline&)>& body) {
  const std::string path = str("timeline_test_", ::getpid(), ".json");
  Timeline timeline;
  REQUIRE(timeline.open(path, style).ok());
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

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
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
void answered(Timeline& timeline, const std::string& name, int set = 0) {
  timeline.write([&](TimelineWriter& to) { to.answered(set, name, Clock::now()); });
}

}  // namespace

TEST_CASE("a packed allreduce has Horovod's bars, with a tick for each rank that was ready") {
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
    started(timeline, request_of("y", Collective::broadcast), false);  // this rank has joined
  });
  CHECK(events == Names{"B NEGOTIATE_REDUCESCATTER", "X 0", "E", "B REDUCESCATTER", "B QUEUE", "E",
                        "B MPI_REDUCESCATTER", "E", "E", "@2 B NEGOTIATE_BROADCAST", "@2 E",
                        "@2 B BROADCAST", "@2 E"});
}

TEST_CASE("ranks that are ahead by a round wait for the bar of this one to end") {
  const Names events = events_of(horovod, [](Timeline& timeline) {
    started(timeline, request_of("x"), true);
    ready(timeline, request_of("x"), {1});
    ended(timeline, request_of("x"));
  });
  CHECK(events == Names{"B NEGOTIATE_ALLREDUCE", "X 0", "E", "B ALLREDUCE", "B QUEUE", "E",
                        "B MPI_ALLREDUCE", "E", "E", "B NEGOTIATE_ALLREDUCE", "X 1", "E"});
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
    ready(timeline, request_of("y"), {1});  // already of the next round
    ended(timeline, request_of("y"));
  });
  CHECK(events == Names{"B ALLREDUCE", "B QUEUE", "E", "B MPI_ALLREDUCE", "E", "E",
                        "@2 B NEGOTIATE_ALLREDUCE", "@2 X 1", "@2 E"});
}

TEST_CASE("a negotiation ends with an answer, too, and a barrier moves nothing") {
  const Names events = events_of(horovod, [](Timeline& timeline) {
    ready(timeline, request_of("x", Collective::barrier), {0});
    timeline.write([&](TimelineWriter& to) { to.stalled(0, "x", Clock::now()); });
    answered(timeline, "x");
    answered(timeline, "x");
    answered(timeline, "unheard of");
    ready(timeline, request_of("y", Collective::add_process_set), {0});
  });
  CHECK(events == Names{"B NEGOTIATE_BARRIER", "X 0", "i STALL", "E"});
}

TEST_CASE("process sets that use one name have lanes of their own") {
  const Names events = events_of(horovod, [](Timeline& timeline) {
    ready(timeline, request_of("x"), {0});
    ready(timeline, request_of("x"), {0}, 1);
    answered(timeline, "x");
    answered(timeline, "x", 1);
  });
  CHECK(events ==
        Names{"B NEGOTIATE_ALLREDUCE", "X 0", "@2 B NEGOTIATE_ALLREDUCE", "@2 X 0", "E", "@2 E"});
}

TEST_CASE("in Rueda's own format, too, with the process set in the name of the row") {
  const std::string path = str("timeline_test_sets_", ::getpid(), ".json");
  Timeline timeline;
  REQUIRE(timeline.open(path).ok());
  for (const int set : {0, 3}) {
    started(timeline, request_of("x"), true, set);
    ended(timeline, request_of("x"), {"RING"}, set);
    timeline.write([&](TimelineWriter& to) { to.stalled(set, "x", Clock::now()); });
  }
  timeline.close();
  std::vector<std::pair<std::string, std::string>> rows;  // of each event: its row and name
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::string row = between(line, "\"tid\":", ",");
    const bool names_row = line.find("thread_name") != std::string::npos;
    const std::string name = between(line, names_row ? R"("args":{"name":")" : R"("name":")", "\"");
    if (!row.empty()) rows.emplace_back(row, name);
  }
  file.close();
  std::filesystem::remove(path);
  std::vector<std::pair<std::string, std::string>> expected;
  for (const auto& [row, name] : {std::pair{"1", "x"}, {"2", "x (process set 3)"}}) {
    for (const std::string event : {name, "QUEUE", "NEGOTIATE", "ALLREDUCE", "RING", "STALL"}) {
      expected.emplace_back(row, event);
    }
  }
  CHECK(rows == expected);
}

TEST_CASE("a timeline that is stopped while collectives run ends the bars that are open") {
  Names events = events_of(horovod, [](Timeline& timeline) {
    started(timeline, request_of("x"), true);
    ready(timeline, request_of("x"), {1});  // of the next round, which is not written
    ready(timeline, request_of("y"), {1});
  });
  REQUIRE(events.size() > 2);
  std::sort(events.end() - 2, events.end());
  CHECK(events == Names{"B NEGOTIATE_ALLREDUCE", "X 0", "E", "B ALLREDUCE",
                        "@2 B NEGOTIATE_ALLREDUCE", "@2 X 1", "@2 E", "E"});
}

TEST_CASE("cycles are marked only if asked for") {
  const auto mark = [](Timeline& timeline) {
    timeline.write([](TimelineWriter& to) { to.cycle(Clock::now()); });
  };
  CHECK(events_of(horovod, mark).empty());
  CHECK(events_of({TimelineFormat::horovod, true}, mark) == Names{"i CYCLE_START"});
  CHECK(events_of({TimelineFormat::rueda, true}, mark).empty());
}

TEST_CASE("another world ends what was under way before it, and goes on in the same file") {
  const auto follow = [](Timeline& timeline) {
    ready(timeline, request_of("x"), {1});
    started(timeline, request_of("y"), true);
    ready(timeline, request_of("y"), {1});  // of a next round that never comes
    timeline.write([](TimelineWriter& to) { to.world({1, 2, 3}, Clock::now()); });
    started(timeline, request_of("x"), true);
    ended(timeline, request_of("x"), {"RING"});
  };
  Names events = events_of(horovod, follow);
  const auto mark = std::find(events.begin(), events.end(), "i WORLD");
  REQUIRE(mark != events.end());
  std::sort(mark - 2, mark);
  CHECK(events == Names{"B NEGOTIATE_ALLREDUCE", "X 1", "@2 B NEGOTIATE_ALLREDUCE", "@2 X 0",
                        "@2 E", "@2 B ALLREDUCE", "@2 E", "E", "i WORLD", "B NEGOTIATE_ALLREDUCE",
                        "X 2", "E", "B ALLREDUCE", "B QUEUE", "E", "B MPI_ALLREDUCE", "E", "E"});
  events = events_of(
      {}, [](Timeline& timeline) { CHECK(timeline.take_over({7, 1, 2}, "unused", {}).ok()); });
  CHECK(events == Names{"i WORLD"});
}

TEST_CASE("worlds take turns in writing one trace") {
  const std::string path = str("timeline_test_turns_", ::getpid());
  const auto trace = std::make_shared<Trace>();
  const auto mark = [](Timeline& timeline, const std::string& name) {
    timeline.write([&](TimelineWriter& to) { to.stalled(0, name, Clock::now()); });
  };
  Timeline first(trace);
  REQUIRE(first.take_over({0, 1, 2}, path + "_%r", {}).ok());
  mark(first, "of the first");
  {
    const Timeline skipped(trace);  // never becomes the process's world
    Timeline second(trace);
    mark(second, "too early");
    REQUIRE(second.take_over({1, 0, 1}, path + "_%r", {}).ok());
    mark(first, "too late");
    mark(second, "of the second");
    CHECK(first.open(path).code() == ErrorCode::invalid_argument);
  }
  Timeline third(trace);
  REQUIRE(third.take_over({2, 0, 1}, path + "_%r", {}).ok());
  CHECK(third.is_open());
  mark(third, "of the third");
  first.close();  // any world can close it
  CHECK_FALSE(third.is_open());
  Names written;
  std::ifstream file(path + "_1");
  for (std::string line; std::getline(file, line);) {
    if (!between(line, "\"epoch\":", ",").empty()) {
      written.push_back(between(line, "\"args\":", "}"));
    }
    const bool is_row = line.find("thread_name") != std::string::npos;
    if (is_row) written.push_back(between(line, "\"args\":{\"name\":\"", "\""));
  }
  CHECK(written == Names{"of the first", R"({"epoch":1,"rank":0,"size":1)", "of the second",
                         R"({"epoch":2,"rank":0,"size":1)", "of the third"});
  std::filesystem::remove(path + "_1");
  // A timeline that was stopped is not reopened by an option.
  Timeline fourth(trace);
  REQUIRE(fourth.take_over({3, 0, 1}, path, {}).ok());
  CHECK_FALSE(fourth.is_open());
}

TEST_CASE("a later world begins a trace of its own where its process has none") {
  const std::string path = str("timeline_test_later_", ::getpid());
  const auto trace = std::make_shared<Trace>();
  Timeline first(trace);
  REQUIRE(first.take_over({0, 1, 2}, path, {}).ok());
  CHECK_FALSE(first.is_open());  // only rank 0 writes this file
  Timeline second(trace);
  REQUIRE(second.take_over({4, 0, 1}, path, {}).ok());
  CHECK(second.is_open());
  CHECK_FALSE(std::filesystem::exists(path));
  CHECK(std::filesystem::remove(path + ".epoch4"));
}

TEST_CASE("a trace is started again in each world by the same call, and by no other") {
  const std::string path = str("timeline_test_anew_", ::getpid());
  const auto trace = std::make_shared<Trace>();
  Timeline first(trace);
  REQUIRE(first.take_over({0, 1, 3}, "", {}).ok());
  REQUIRE(first.open(path + "_%r", horovod).ok());
  Timeline second(trace);
  REQUIRE(second.take_over({1, 0, 2}, "", {}).ok());
  CHECK(second.open(path + "_%r", horovod).ok());
  CHECK(second.open(path + "_%r", horovod).ok());  // the same again, in the same world
  CHECK(second.open(path + "_%r").code() == ErrorCode::invalid_argument);
  CHECK(second.open(path + "_%r", {TimelineFormat::horovod, true}).code() ==
        ErrorCode::invalid_argument);
  const Status other = second.open(path + "_1", horovod);
  CHECK(other.code() == ErrorCode::invalid_argument);
  CHECK(other.message().find(path + "_%r") != std::string::npos);
  second.close();
  CHECK_FALSE(std::filesystem::exists(path + "_0"));
  std::ifstream file(path + "_1");
  int marks = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.find("\"WORLD\"") != std::string::npos) ++marks;
  }
  CHECK(marks == 1);  // the second world continued it
  CHECK(std::filesystem::remove(path + "_1"));
}

TEST_CASE("in a later world no file is replaced that another rank may have begun") {
  const std::string path = str("timeline_test_others_", ::getpid());
  const auto size_of = [](const std::string& name) { return std::filesystem::file_size(name); };
  const auto stalled = [](Timeline& timeline) {
    timeline.write([](TimelineWriter& to) { to.stalled(0, "x", Clock::now()); });
    timeline.flush();
  };
  Timeline stays;  // rank 2, which becomes rank 1 and continues its file
  REQUIRE(stays.take_over({0, 2, 3}, "", {}).ok());
  REQUIRE(stays.open(path + "_%r").ok());
  stalled(stays);
  REQUIRE(stays.take_over({1, 1, 3}, "", {}).ok());
  const auto before = size_of(path + "_2");
  REQUIRE(before > 0);
  Timeline comes;  // the rank 2 of the next world
  REQUIRE(comes.take_over({1, 2, 3}, "", {}).ok());
  REQUIRE(comes.open(path + "_%r").ok());
  stalled(comes);
  CHECK(size_of(path + "_2") == before);
  CHECK(size_of(path + "_2.epoch1") > 0);
  comes.close();
  // A file that it began itself is replaced.
  for (int round = 0; round < 2; ++round) {
    REQUIRE(comes.open(path + "_own_%r").ok());
    comes.close();
  }
  CHECK(std::filesystem::remove(path + "_own_2"));
  CHECK_FALSE(std::filesystem::exists(path + "_own_2.epoch1"));
  stays.close();
  CHECK(std::filesystem::remove(path + "_2"));
  CHECK(std::filesystem::remove(path + "_2.epoch1"));
}

TEST_CASE("whoever still holds a world opens a trace as the rank of the present one, or none") {
  const std::string path = str("timeline_test_held_", ::getpid());
  const auto trace = std::make_shared<Trace>();
  Timeline first(trace);
  REQUIRE(first.take_over({0, 2, 3}, "", {}).ok());
  Timeline second(trace);
  REQUIRE(second.take_over({1, 1, 2}, "", {}).ok());
  REQUIRE(first.open(path + "_%r").ok());
  CHECK_FALSE(std::filesystem::exists(path + "_2"));
  second.end();
  CHECK_FALSE(second.is_open());
  const auto before = content_of(path + "_1");
  CHECK(between(before, "\"pid\":", ",") == "1");
  CHECK(first.open(path + "_%r").code() == ErrorCode::not_initialized);
  CHECK(second.open(path + "_%r").code() == ErrorCode::not_initialized);
  CHECK(content_of(path + "_1") == before);
  CHECK(std::filesystem::remove(path + "_1"));
}

// Limits the size of this process's files; a write beyond it fails as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

// The text that `body` writes to standard error.
std::string logged_by(const std::function<void()>& body) {
  const std::string path = str("timeline_test_log_", ::getpid());
  const int before = ::dup(STDERR_FILENO);
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  ::dup2(file, STDERR_FILENO);
  body();
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  std::ifstream log(path);
  std::string text(std::istreambuf_iterator<char>(log), {});
  ::close(file);
  std::filesystem::remove(path);
  return text;
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_CASE("a trace that no longer can be written is reported once and ends with a whole event") {
  const std::string path = str("timeline_test_full_", ::getpid(), ".json");
  const rlim_t limit = GENERATE(700, 4096, 4097, 4098, 4099, 70000, 131072);
  const std::string events = "[\n{\"event\":0}";
  std::string log;
  {
    const FileSizeLimit full(limit);
    log = logged_by([&] {
      TraceFile file;
      REQUIRE(file.open(path).ok());
      for (int i = 0; i < 20000; ++i) {
        file.write(str("\"event\":", i));
        if (i % 7 == 0) file.flush();
      }
      file.close();
    });
  }
  const std::string text = content_of(path);
  std::filesystem::remove(path);
  CHECK(count_of(log, "error: the timeline '") == 1);
  CHECK(count_of(log, str("the timeline '", path,
                          "' cannot be written any further: ", std::strerror(EFBIG))) == 1);
  // Only whole events, and nearly as many as there was room for.
  REQUIRE(text.size() <= limit);
  CHECK(text.size() + 40 > limit);
  CHECK(text.starts_with(events));
  const std::string tail = text.substr(text.rfind('{'));
  const std::size_t count = count_of(text, "\"event\":");
  CHECK(tail.starts_with(str("{\"event\":", count - 1, "}")));
}

TEST_CASE("a trace of a full device is reported once") {
  if (::access("/dev/full", W_OK) != 0) return;
  const std::string log = logged_by([] {
    TraceFile file;
    REQUIRE(file.open("/dev/full").ok());
    for (int i = 0; i < 3; ++i) {
      file.write("\"event\":1");
      file.flush();
    }
    file.close();
  });
  CHECK(count_of(log,
                 "the timeline '/dev/full' cannot be written any further: "
                 "No space left on device") == 1);
  CHECK(count_of(log, "\n") == 1);
}

TEST_CASE("a pipe is refused as a trace, whether or not it is read") {
  const std::string path = str("timeline_test_fifo_", ::getpid());
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  TraceFile file;
  const std::string unread = file.open(path).to_string();
  CHECK(unread.find("it is a pipe that nobody reads") != std::string::npos);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  const std::string read = file.open(path).to_string();
  CHECK(read.find("it is a pipe, a socket or a device, not a file") != std::string::npos);
  ::close(reader);
  std::filesystem::remove(path);
}

TEST_CASE("a trace that another one replaces goes on beside it") {
  const std::string path = str("timeline_test_", ::getpid(), "_twice.json");
  const std::string link = str("timeline_test_", ::getpid(), "_link.json");
  const bool is_linked =
      GENERATE(false, true);  // a link stays, and what it leads to is overwritten
  if (is_linked) std::filesystem::create_symlink(path, link);
  TraceFile earlier;
  TraceFile later;
  REQUIRE(earlier.open(path).ok());
  earlier.write("\"of\":\"the earlier one\"");
  earlier.flush();
  REQUIRE(later.open(is_linked ? link : path).ok());
  later.write("\"of\":\"the later one\"");
  if (!is_linked) earlier.write("\"of\":\"the earlier one\"");
  later.close();
  if (!is_linked) earlier.close();
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  CHECK(text == "[\n{\"of\":\"the later one\"}\n]\n");
  CHECK(std::filesystem::is_symlink(link) == is_linked);
  std::filesystem::remove(path);
  std::filesystem::remove(link);
}

TEST_CASE("a trace without events is an empty array") {
  const std::string path = str("timeline_test_empty_", ::getpid());
  TraceFile file;
  REQUIRE(file.open(path).ok());
  file.close();
  CHECK(content_of(path) == "[\n]\n");
  std::filesystem::remove(path);
}

}  // namespace rueda::test::timeline_test
