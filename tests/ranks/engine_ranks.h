// A world of threads: one engine per rank in one process, each used by its own thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/runtime.h"
#include "membership/inproc_world.h"
#include "ranks/rank_threads.h"

namespace rueda::test {

// Whether the ranks of a test share memory like ranks of one host.
enum class Sharing { nothing, memory };

// Runs body(rank, engine) on `size` ranks at once, in a new world or that of `shared_hub`.
// `host_of`: each rank's host, whose ranks share memory; one host for all ranks if empty.
// `prepare`: called with each rank's world before its engine starts.
inline void run_engines(int size, const Options& options,
                        const std::function<void(int, Runtime&)>& body,
                        InprocHub* shared_hub = nullptr, Sharing sharing = Sharing::nothing,
                        const std::vector<int>& host_of = {},
                        LossPolicy on_loss = LossPolicy::end_world,
                        const std::function<void(int rank, World& world)>& prepare = {}) {
  InprocHub own_hub(size);
  InprocHub& hub = shared_hub != nullptr ? *shared_hub : own_hub;
  run_ranks(size, [&](int rank) {
    World world = inproc_world(hub, rank);
    if (!host_of.empty()) world.topology.host_of = host_of;
    if (sharing == Sharing::memory) {
      const auto bootstrap = hub.make_bootstrap(rank);
      auto formed = HostGroup::form(*bootstrap, world.topology.host_of, soon());
      formed.status().throw_if_error();
      world.host = std::move(formed).value();
      if (world.host.memory()) {
        auto joined = join_host(world.host, std::move(world.transport));
        joined.status().throw_if_error();
        world.transport = std::move(joined).value();
      }
      bootstrap->barrier(soon()).throw_if_error();
    }
    if (prepare) prepare(rank, world);
    auto engine = Runtime::start(std::move(world), options, on_loss);
    engine.status().throw_if_error();
    body(rank, **engine);
  });
}

// Waits for an operation; throws its error, or an error if it hangs.
inline void finish(const Handle& handle) {
  expect(handle.wait_for(soon() - Clock::now()), "an operation that completes");
}

// The text of the error, which must be an E, with which the operation ends.
template <class E>
std::string error_of(const Handle& handle) {
  try {
    finish(handle);
  } catch (const E& error) {
    return error.what();
  }
  throw std::runtime_error("expected an error");
}

template <class T>
Submission allreduce_of(std::vector<T>& data, DataType dtype, const std::string& name,
                        ReduceOp op = ReduceOp::sum) {
  Submission submission;
  submission.request.name = name;
  submission.request.collective = Collective::allreduce;
  submission.request.dtype = dtype;
  submission.request.op = op;
  submission.request.shape = {static_cast<std::int64_t>(data.size())};
  submission.input = reinterpret_cast<const std::byte*>(data.data());
  submission.output = reinterpret_cast<std::byte*>(data.data());
  return submission;
}

// The submission as the list that the engine takes.
inline std::vector<Submission> one(Submission submission) {
  std::vector<Submission> submissions;
  submissions.push_back(std::move(submission));
  return submissions;
}

inline Handle submit(Runtime& engine, Submission submission, int set = 0) {
  return engine.submit(set, one(std::move(submission))).front();
}

// Like a blocking call.
inline Handle run(Runtime& engine, Submission submission, int set = 0) {
  return engine.submit_and_wait(set, one(std::move(submission))).front();
}

// The value of a counter.
inline std::int64_t metric(Runtime& engine, const std::string& name) {
  return engine.metrics().values().at(name);
}

// Returns once the engine has slept for 500 ms without waking up; throws if it never does. The time
// until it falls asleep does not matter: on a busy machine, its last work may be late.
inline void expect_asleep(Runtime& engine) {
  const auto wakeups = [&] {
    const auto now = engine.metrics().values();
    return std::pair(now.at("sleeps"), now.at("idle_wakeups"));
  };
  const Time deadline = soon();
  for (auto before = wakeups();;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const auto after = wakeups();
    if (after == before) return;
    expect(Clock::now() < deadline, "one long sleep, and nothing to wake up for");
    before = after;
  }
}

// Adds a process set of these ranks; returns its number.
inline int add_set(Runtime& engine, std::vector<int> ranks) {
  Submission submission;
  submission.request.collective = Collective::add_process_set;
  submission.request.set_ranks = std::move(ranks);
  const Handle handle = submit(engine, std::move(submission));
  finish(handle);
  return handle.state()->output.process_set;
}

inline void remove_set(Runtime& engine, int id) {
  Submission submission;
  submission.request.collective = Collective::remove_process_set;
  submission.request.set_id = id;
  finish(submit(engine, std::move(submission)));
}

}  // namespace rueda::test
