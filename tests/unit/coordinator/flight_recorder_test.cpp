// The operations that a rank records, and the file that it writes of them.
#include "coordinator/flight_recorder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "core/strings.h"

namespace rueda::test::flight_recorder_test {

namespace {

namespace fs = std::filesystem;
using Occasion = FlightRecorder::Occasion;

// A temporary folder.
class Folder {
 public:
  Folder() : path_(str("flight_recorder_test_", ::getpid())) { fs::remove_all(path_); }
  ~Folder() { fs::remove_all(path_); }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string read(const std::string& name) const {
    std::ifstream file(fs::path(path_) / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((fs::path(path_) / name).parent_path());
    std::ofstream(fs::path(path_) / name) << text;
  }
  [[nodiscard]] bool has(const std::string& name) const {
    return fs::exists(fs::path(path_) / name);
  }

 private:
  std::string path_;
};

Request request_of(const std::string& name) {
  Request request;
  request.name = name;
  request.shape = {2, 3};
  return request;
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("without a folder nothing is recorded") {
  FlightRecorder recorder;
  CHECK_FALSE(recorder.is_on());
  CHECK(recorder.submit(0, request_of("w"), Clock::now()) == 0);
  recorder.start(0);
  recorder.end(0, {});
  recorder.dump(Occasion::stall, Status(ErrorCode::stalled, "nothing"));
  CHECK(recorder.write(Occasion::request, "nothing").code() == ErrorCode::invalid_argument);
}

TEST_CASE("a record tells of each operation how far it came") {
  const Folder folder;
  FlightRecorder recorder(folder.path(), 10, 1, 3);
  REQUIRE(recorder.is_on());
  recorder.know_set(0, {0, 1, 2});
  const auto done = recorder.submit(0, request_of("w"), Clock::now());
  recorder.start(done);
  recorder.end(done, {});
  recorder.end(recorder.submit(0, request_of("b"), Clock::now()),
               Status(ErrorCode::mismatch, "of another \"shape\""));
  recorder.start(recorder.submit(0, request_of("w"), Clock::now()));
  Request root = request_of("weights");
  root.collective = Collective::broadcast;
  root.root = 2;
  recorder.submit(0, root, Clock::now());
  REQUIRE(recorder.write(Occasion::request, "a test").ok());
  const std::string text = folder.read("rank1.json");
  INFO(text);
  CHECK(has(text, "\"rueda_flight_record\":1,\"rank\":1,\"size\":3,"));
  CHECK(
      has(text,
          "\"occasion\":\"request\",\"why\":\"a test\",\"forgotten\":0,\"sets\":{\"0\":[0,1,2]}"));
  CHECK(has(text, "\"w\":2"));
  CHECK(has(text,
            "\"number\":1,\"set\":0,\"name\":\"w\",\"generation\":0,\"of_name\":1,\"collective\":"
            "\"allreduce\","
            "\"dtype\":\"float32\",\"shape\":[2,3],\"stage\":\"done\""));
  CHECK(has(text, "\"code\":\"mismatch\",\"error\":\""));
  CHECK(has(text, "of another \\\"shape\\\""));
  CHECK(has(text, "\"number\":3,\"set\":0,\"name\":\"w\",\"generation\":0,\"of_name\":2"));
  CHECK(count_of(text, "\"stage\":\"running\"") == 1);
  CHECK(count_of(text, "\"stage\":\"failed\"") == 1);
  CHECK(has(text, "\"stage\":\"submitted\""));
  CHECK(has(text, "\"root\":2"));
  CHECK(count_of(text, "\"op\":\"sum\"") == 3);
}

TEST_CASE("the last operations that have ended are remembered, and all that are open") {
  const Folder folder;
  const auto capacity = static_cast<std::size_t>(GENERATE(0, 1, 3));
  FlightRecorder recorder(folder.path(), capacity, 0, 1);
  recorder.submit(0, request_of("open"), Clock::now());
  for (int i = 0; i < 8; ++i) {
    recorder.end(recorder.submit(0, request_of(str("of", i)), Clock::now()), {});
  }
  REQUIRE(recorder.write(Occasion::request, "a test").ok());
  const std::string text = folder.read("rank0.json");
  INFO(text);
  CHECK(count_of(text, "\"number\":") == capacity + 1);
  CHECK(has(text, "\"name\":\"open\""));
  CHECK(has(text, str("\"forgotten\":", 8 - capacity)));
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(has(text, str("\"name\":\"of", i, "\"")) == (i >= 8 - capacity));
    CHECK(has(text, str("\"of", i, "\":1")));  // counted although forgotten
  }
}

TEST_CASE("a record tells what it was written upon, and which rank was lost") {
  const Folder folder;
  const FlightRecorder recorder(folder.path(), 10, 0, 3);
  recorder.dump(Occasion::stall, Status(ErrorCode::stalled, "waits", 2));
  std::string text = folder.read("rank0.json");
  CHECK(has(text, "\"occasion\":\"stall\",\"why\":\"waits\",\"forgotten\":0"));
  recorder.dump(Occasion::failure, Status(ErrorCode::peer_lost, "is gone", 2));
  text = folder.read("rank0.json");
  CHECK(has(text, "\"occasion\":\"failure\",\"why\":\"is gone\",\"lost\":2,\"forgotten\":0"));
  recorder.dump(Occasion::failure, Status(ErrorCode::internal, "of nobody's making"));
  CHECK_FALSE(has(folder.read("rank0.json"), "\"lost\""));
}

TEST_CASE("the record of an earlier world is set aside") {
  const Folder folder;
  folder.write("rank0.json", "earlier");
  folder.write("rank2.json", "of a larger world");
  folder.write("rank12.json", "of a larger world");
  folder.write("rank1.json", "of another rank");
  folder.write("notes.json", "the user's");
  folder.write("epoch3/rank1.json", "of an earlier job");
  folder.write("epochs/rank1.json", "the user's");
  const FlightRecorder recorder(folder.path(), 10, 0, 2);
  CHECK_FALSE(folder.has("rank0.json"));
  CHECK(folder.read("rank0.previous.json") == "earlier");
  CHECK_FALSE(folder.has("rank2.json"));
  CHECK_FALSE(folder.has("rank12.json"));
  CHECK(folder.has("rank12.previous.json"));
  CHECK(folder.read("rank1.json") == "of another rank");
  CHECK(folder.has("notes.json"));
  CHECK_FALSE(folder.has("epoch3/rank1.json"));
  CHECK(folder.has("epoch3/rank1.previous.json"));
  CHECK(folder.has("epochs/rank1.json"));
  CHECK(recorder.write(Occasion::request, "a test").ok());
  CHECK(folder.has("rank0.json"));
  CHECK_FALSE(folder.has("rank0.json.part"));
}

TEST_CASE("a folder is made, and one that cannot be is told") {
  const Folder folder;
  const FlightRecorder recorder(folder.path() + "/a/b", 10, 0, 1);
  CHECK(recorder.write(Occasion::request, "a test").ok());
  CHECK(folder.has("a/b/rank0.json"));
  folder.write("file", "");
  const FlightRecorder refused(folder.path() + "/file/b", 10, 0, 1);
  const Status status = refused.write(Occasion::request, "a test");
  CHECK(status.code() == ErrorCode::initialization);
  CHECK(has(status.message(), "the flight record cannot be written: "));
  CHECK(has(status.message(), "/file"));
}

TEST_CASE("after all members of a set have joined, its operations are counted anew") {
  const Folder folder;
  FlightRecorder recorder(folder.path(), 10, 0, 1);
  recorder.end(recorder.submit(0, request_of("w"), Clock::now()), {});
  recorder.end(recorder.submit(4, request_of("w"), Clock::now()), {});
  recorder.begin_anew(0);
  recorder.end(recorder.submit(0, request_of("w"), Clock::now()), {});
  recorder.end(recorder.submit(4, request_of("w"), Clock::now()), {});
  REQUIRE(recorder.write(Occasion::request, "a test").ok());
  const std::string text = folder.read("rank0.json");
  INFO(text);
  CHECK(has(text, "\"set\":0,\"name\":\"w\",\"generation\":1,\"of_name\":1"));
  CHECK(has(text, "\"set\":4,\"name\":\"w\",\"generation\":0,\"of_name\":2"));
  CHECK(has(text, "\"generations\":{\"0\":1,\"4\":0}"));
}

TEST_CASE("a record does not grow with the sets that come and go") {
  const Folder folder;
  FlightRecorder recorder(folder.path(), 4, 0, 2);
  recorder.know_set(0, {0, 1});
  const auto size_after = [&](int first, int last) {
    for (int set = first; set < last; ++set) {
      recorder.know_set(set, {0, 1});
      recorder.end(recorder.submit(set, request_of("only here"), Clock::now()), {});
      recorder.begin_anew(set);
      recorder.end(recorder.submit(set, request_of("only here"), Clock::now()), {});
      recorder.forget_set(set);
    }
    REQUIRE(recorder.write(Occasion::request, "asked").ok());
    return folder.read("rank0.json").size();
  };
  const std::size_t before = size_after(10'000, 11'100);
  const std::size_t after = size_after(11'100, 90'000);
  CHECK(after < before + 100);  // digits of counters
  const std::string text = folder.read("rank0.json");
  CHECK(has(text, "\"0\":[0,1]"));
  CHECK(has(text, "\"89999\":[0,1]"));
  CHECK_FALSE(has(text, "\"11099\""));
  CHECK(count_of(text, "\"of_name\":1") == 4);  // names of ended sets do not count
}

TEST_CASE("what others have put where a record is to be written is not written to") {
  const Folder folder;
  const FlightRecorder recorder(folder.path(), 10, 0, 1);
  const fs::path unfinished = fs::path(folder.path()) / "rank0.json.part";
  folder.write("theirs", "not ours");
  const bool is_pipe = GENERATE(false, true);
  if (is_pipe) {
    REQUIRE(::mkfifo(unfinished.c_str(), 0600) == 0);  // opening it would wait for a reader
  } else {
    fs::create_symlink(fs::absolute(fs::path(folder.path()) / "theirs"), unfinished);
  }
  CHECK(recorder.write(Occasion::request, "a test").ok());
  CHECK(has(folder.read("rank0.json"), "\"why\":\"a test\""));
  CHECK(folder.read("theirs") == "not ours");
}

TEST_CASE("threads may record while one writes") {
  const Folder folder;
  FlightRecorder recorder(folder.path(), 16, 0, 1);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&recorder, thread] {
      for (int i = 0; i < 200; ++i) {
        const auto number = recorder.submit(0, request_of(str("of", thread)), Clock::now());
        recorder.start(number);
        recorder.end(number, {});
      }
    });
  }
  for (int i = 0; i < 20; ++i) CHECK(recorder.write(Occasion::request, "a test").ok());
  for (std::thread& thread : threads) thread.join();
  CHECK(recorder.write(Occasion::request, "a test").ok());
  const std::string text = folder.read("rank0.json");
  CHECK(has(text, "\"forgotten\":584"));
  CHECK(has(text, "\"of2\":200"));
}

}  // namespace rueda::test::flight_recorder_test
