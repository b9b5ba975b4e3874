#include <unistd.h>

#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <string>

#include "core/strings.h"
#include "effort.h"
#include "ranks/engine_ranks.h"
#include "ranks/late_rank.h"

namespace rueda::test::engine_test {

TEST_CASE("allreduce sums over any number of ranks, in any order of submission") {
  const int size = GENERATE(from_range(efforts({1, 2, 3, 4, 7}, {1, 2, 6})));
  run_engines(size, {}, [&](int rank, Runtime& engine) {
    std::mt19937 random(static_cast<unsigned>(rank) + 1);
    for (int round = 0; round < 5; ++round) {
      std::vector<std::vector<float>> tensors;
      for (int i = 0; i < 20; ++i) {
        tensors.emplace_back(static_cast<std::size_t>(i * i * 3), static_cast<float>(rank + i));
      }
      std::vector<int> order(tensors.size());
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
      std::shuffle(order.begin(), order.end(), random);
      std::vector<Handle> handles;
      for (const int i : order) {
        handles.push_back(submit(engine, allreduce_of(tensors[static_cast<std::size_t>(i)],
                                                      DataType::float32, "t" + std::to_string(i))));
      }
      for (const Handle& handle : handles) finish(handle);
      for (int i = 0; i < 20; ++i) {
        const auto expected = static_cast<float>(size * (size - 1) / 2 + size * i);
        for (const float value : tensors[static_cast<std::size_t>(i)]) {
          expect(value == expected, "the sum");
        }
      }
    }
    expect(engine.metrics().values().at("tensors_completed") == 100, "100 tensors");
  });
}

TEST_CASE("a ring takes 2(P-1) steps and moves 2(P-1)n bytes") {
  const int size = GENERATE(2, 3, 4);
  std::atomic<std::int64_t> sent{0};
  run_engines(size, {}, [&](int, Runtime& engine) {
    std::vector<double> tensor(1001, 1.0);
    finish(submit(engine, allreduce_of(tensor, DataType::float64, "t")));
    const auto metrics = engine.metrics().values();
    expect(metrics.at("allreduce_ring_steps") == 2 * (size - 1), "steps");
    expect(metrics.at("allreduce_batches") == 1, "one batch");
    sent += metrics.at("allreduce_payload_bytes_sent");
  });
  CHECK(sent == 2 * (size - 1) * 1001 * 8);
}

TEST_CASE("ranks that disagree are told what differs, and the world goes on") {
  run_engines(3, {}, [&](int rank, Runtime& engine) {
    std::vector<float> single(4, 1);
    std::vector<double> wide(4, 1);
    const Handle handle = rank == 2 ? submit(engine, allreduce_of(wide, DataType::float64, "x"))
                                    : submit(engine, allreduce_of(single, DataType::float32, "x"));
    const std::string message = error_of<MismatchError>(handle);
    expect(message.find("'x'") != std::string::npos, "the name in: " + message);
    expect(message.find("dtype differs") != std::string::npos, "the field in: " + message);
    expect(message.find("float64 on rank 2") != std::string::npos, "the rank in: " + message);
    finish(submit(engine, allreduce_of(single, DataType::float32, "x")));
    expect(single[0] == 3, "a sum after the mismatch");
  });
}

// Whether the text of a stall names `rank` among those that have not submitted: "missing on rank
// 1", "missing on ranks 0, 2 and 4-6". Not by std::regex: libstdc++'s writes into the locale that
// all threads share.
bool is_missing(int rank, const std::string& stall) {
  const auto list = stall.find("missing on rank");
  if (list == std::string::npos) return false;
  std::string ranks = stall.substr(list, stall.find(';', list) - list);
  for (char& each : ranks) {
    if (each != '-' && (each < '0' || each > '9')) each = ' ';
  }
  std::istringstream words(ranks);
  for (int first = 0; words >> first;) {
    int last = first;
    if (words.peek() == '-') words.ignore() >> last;
    if (first <= rank && rank <= last) return true;
  }
  return false;
}

TEST_CASE("a tensor that some ranks never submit stalls with an error on all") {
  Options options;
  options.stall_warning = 0.1;
  options.stall_error = 1;
  const int size = GENERATE(2, 6);
  const int late = GENERATE(0, 1);
  LateRank late_rank(size, late);
  run_engines(size, options, [&](int rank, Runtime& engine) {
    const std::string message = late_rank.stall(rank, engine, "x", 4);
    // On a slow machine, other ranks may be missing too.
    expect(is_missing(late, message), message);
    std::vector<float> tensor(4, 1);
    finish(submit(engine, allreduce_of(tensor, DataType::float32, "x")));
    expect(tensor[0] == static_cast<float>(size), "a sum after the stall");
    expect(engine.metrics().values().at("stall_warnings") > 0, "a warning before the error");
  });
}

TEST_CASE("a second submission under a pending name fails on every rank") {
  run_engines(2, {}, [&](int rank, Runtime& engine) {
    std::vector<float> first(4, 1);
    std::vector<float> second(4, 1);
    if (rank == 0) {
      const Handle pending = submit(engine, allreduce_of(first, DataType::float32, "x"));
      error_of<DuplicateNameError>(submit(engine, allreduce_of(second, DataType::float32, "x")));
      submit(engine, allreduce_of(second, DataType::float32, "go"));
      error_of<DuplicateNameError>(pending);
    } else {
      finish(submit(engine, allreduce_of(second, DataType::float32, "go")));
      error_of<DuplicateNameError>(submit(engine, allreduce_of(first, DataType::float32, "x")));
    }
    finish(submit(engine, allreduce_of(first, DataType::float32, "x")));
  });
}

TEST_CASE("one name handed to different process sets is a mismatch, not a hang") {
  Options options;
  options.stall_warning = 0.2;
  options.stall_error = 20;
  run_engines(2, options, [&](int rank, Runtime& engine) {
    Submission add;
    add.request.collective = Collective::add_process_set;
    add.request.set_ranks = {0, 1};
    const Handle added = submit(engine, std::move(add));
    finish(added);
    const int set = added.state()->output.process_set;
    expect(set == 1, "the first set is number 1");
    std::vector<float> tensor(4, 1);
    const std::string message = error_of<MismatchError>(
        submit(engine, allreduce_of(tensor, DataType::float32, "x"), rank == 0 ? 0 : set));
    expect(message.find("process set") != std::string::npos, message);
    finish(submit(engine, allreduce_of(tensor, DataType::float32, "x"), set));
    finish(submit(engine, allreduce_of(tensor, DataType::float32, "x"), 0));
    expect(tensor[0] == 4, "sums after the mismatch");
  });
}

TEST_CASE("a rank that has joined contributes the identity") {
  run_engines(3, {}, [&](int rank, Runtime& engine) {
    for (int step = 0; step <= rank; ++step) {
      std::vector<float> tensor(5, 3);
      finish(submit(engine, allreduce_of(tensor, DataType::float32, "g", ReduceOp::average)));
      expect(tensor[0] == 3, "the average over those who take part");
    }
    const Handle joined = engine.join(0);
    finish(joined);
    expect(joined.state()->output.last_joined_rank >= 0, "who was last");
    std::vector<float> tensor(5, 1);
    finish(submit(engine, allreduce_of(tensor, DataType::float32, "after")));
    expect(tensor[0] == 3, "everybody again after the join");
  });
}

TEST_CASE("a rank that shuts down fails what waits for it, and is no failure itself") {
  run_engines(4, {}, [&](int rank, Runtime& engine) {
    std::vector<float> tensor(4, 1);
    finish(submit(engine, allreduce_of(tensor, DataType::float32, "x")));
    if (rank == 1) return;
    const std::string message =
        error_of<ShutdownError>(submit(engine, allreduce_of(tensor, DataType::float32, "y")));
    expect(message.find("rank 1 has shut down") != std::string::npos, message);
  });
}

TEST_CASE("a rank that dies is named by all survivors") {
  InprocHub hub(4);
  run_engines(
      4, {},
      [&](int rank, Runtime& engine) {
        std::vector<float> tensor(4, 1);
        std::string message;
        for (int step = 0; message.empty(); ++step) {
          if (rank == 2 && step == 3) return hub.kill(2, "killed by the test");
          try {
            finish(submit(engine, allreduce_of(tensor, DataType::float32, "x")));
          } catch (const PeerLostError& error) {
            message = error.what();
          }
        }
        expect(message.find("rank 2") != std::string::npos, message);
        expect(message.find("killed by the test") != std::string::npos, message);
      },
      &hub);
}

TEST_CASE("a rank that aborts tells everybody why") {
  run_engines(5, {}, [&](int rank, Runtime& engine) {
    std::vector<float> tensor(4, 1);
    if (rank == 4) return engine.abort("ValueError: no such file");
    const std::string message =
        error_of<PeerLostError>(submit(engine, allreduce_of(tensor, DataType::float32, "y")));
    expect(message.find("rank 4") != std::string::npos, message);
    expect(message.find("ValueError: no such file") != std::string::npos, message);
  });
}

TEST_CASE("the timeline has a bar for each phase of each tensor, on the rank that asks for it") {
  const std::string path = "timeline_test_" + std::to_string(::getpid()) + "_%r.json";
  Options options;
  options.timeline = path;
  run_engines(2, options, [&](int, Runtime& engine) {
    std::vector<float> first(4, 1);
    std::vector<float> second(9, 1);
    finish(submit(engine, allreduce_of(first, DataType::float32, "layer \"one\"")));
    finish(submit(engine, allreduce_of(second, DataType::float32, "two")));
  });
  for (const char rank : {'0', '1'}) {
    std::string name = path;
    name.replace(name.find("%r"), 2, 1, rank);
    std::ifstream file(name);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    std::filesystem::remove(name);
    for (const char* phase : {"QUEUE", "NEGOTIATE", "ALLREDUCE"}) {
      const std::string bar = str("\"name\":\"", phase, "\",\"ph\":\"X\",\"pid\":", rank);
      const auto at = text.find(bar);
      REQUIRE(at != std::string::npos);
      CHECK(text.find(bar, at + 1) != std::string::npos);
    }
    CHECK(text.find(R"("layer \"one\"")") != std::string::npos);
    CHECK(text.substr(text.size() - 3) == "\n]\n");
  }
}

TEST_CASE("a timeline can be started and stopped while the engine runs") {
  const std::string path = "timeline_test_" + std::to_string(::getpid()) + "_%r_started.json";
  run_engines(2, {}, [&](int, Runtime& engine) {
    const auto reduce = [&](const std::string& name) {
      std::vector<float> tensor(4, 1);
      finish(submit(engine, allreduce_of(tensor, DataType::float32, name)));
    };
    engine.timeline().close();  // no timeline is open
    reduce("before");
    expect(engine.timeline().open(path).ok(), "starts");
    expect(engine.timeline().open(path + "_again").code() == ErrorCode::invalid_argument,
           "only one");
    reduce("between");
    engine.timeline().close();
    reduce("after");
    expect(engine.timeline().open("/no/such/folder/%r").code() == ErrorCode::initialization, "why");
    expect(engine.timeline().open(path + "_again").ok(), "starts anew");
    reduce("again");
  });
  for (const char* again : {"", "_again"}) {
    for (const char rank : {'0', '1'}) {
      std::string name = path + again;
      name.replace(name.find("%r"), 2, 1, rank);
      std::ifstream file(name);
      const std::string text{std::istreambuf_iterator<char>(file),
                             std::istreambuf_iterator<char>()};
      std::filesystem::remove(name);
      const bool is_first = *again == '\0';
      CHECK((text.find("\"between\"") != std::string::npos) == is_first);
      CHECK((text.find("\"again\"") != std::string::npos) == !is_first);
      CHECK(text.find("\"before\"") == std::string::npos);
      CHECK(text.find("\"after\"") == std::string::npos);
      CHECK(text.find("\"ts\":-") == std::string::npos);
      CHECK(text.substr(text.size() - 3) == "\n]\n");
    }
  }
}

TEST_CASE("an idle engine does not wake up") {
  std::barrier together(3);
  run_engines(3, {}, [&](int, Runtime& engine) {
    std::vector<float> tensor(4, 1);
    finish(submit(engine, allreduce_of(tensor, DataType::float32, "x")));
    finish(submit(engine, allreduce_of(tensor, DataType::float32, "y")));
    together.arrive_and_wait();
    expect_asleep(engine);
    together.arrive_and_wait();  // no rank leaves while another checks its counters
  });
}

}  // namespace rueda::test::engine_test
