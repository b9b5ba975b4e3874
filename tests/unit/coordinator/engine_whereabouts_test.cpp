// A stall error says where the missing rank's code is, as the language binding reports it.
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "core/whereabouts.h"
#include "ranks/engine_ranks.h"

namespace rueda::test::engine_whereabouts_test {
namespace {

// Answers all questions from its own thread, or none.
class Guide {
 public:
  explicit Guide(bool answers) {
    whereabouts().register_guide([this] { ++questions_; }, "in code that lets nobody look");
    if (answers) thread_ = std::thread([this] { run(); });
  }
  ~Guide() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
    whereabouts().unregister_guide();
  }
  Guide(const Guide&) = delete;
  Guide& operator=(const Guide&) = delete;

  [[nodiscard]] int questions() const { return questions_; }

 private:
  void run() {
    while (!over_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      whereabouts().answer(whereabouts().newest_question(), "at train.py:41 in load");
    }
  }

  std::atomic<int> questions_{0};
  std::atomic<bool> over_{false};
  std::thread thread_;
};

// The stall error of the other of two ranks.
std::string error_without(int missing) {
  Options options;
  options.stall_warning = 0.1;
  options.stall_error = 0.2;
  std::string text;
  std::atomic<bool> told{false};
  run_engines(2, options, [&](int rank, Runtime& engine) {
    if (rank == missing) {
      await([&] { return told.load(); }, "an error elsewhere");
    } else {
      std::vector<float> tensor(3, 1);
      text = error_of<StalledError>(submit(engine, allreduce_of(tensor, DataType::float32, "x")));
      told = true;
    }
    expect(metric(engine, "control_messages_dropped") == 0, "messages that are understood");
  });
  return text;
}

// Whether the error contains `text`. Retries, since an answer may be late on a busy machine.
bool is_told(int missing, const std::string& text) {
  const Time deadline = soon();
  while (Clock::now() < deadline) {
    if (error_without(missing).find(text) != std::string::npos) return true;
  }
  return false;
}

TEST_CASE("a stall's error tells where the missing rank is") {
  const int missing = GENERATE(0, 1);
  const Guide guide(true);
  REQUIRE(is_told(
      missing, str("missing on rank ", missing, "; rank ", missing, " is at train.py:41 in load")));
  REQUIRE(guide.questions() >= 1);
}

TEST_CASE("where the application does not answer, the engine says why") {
  const Guide guide(false);
  REQUIRE(is_told(1, "; rank 1 is in code that lets nobody look for "));
}

TEST_CASE("where nobody can tell, nothing is said") {
  REQUIRE(error_without(1).ends_with("missing on rank 1"));
}

}  // namespace
}  // namespace rueda::test::engine_whereabouts_test
