// A world of threads: P engines in one process, each driven by a thread of its own.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "coordinator/engine.h"
#include "membership/inproc_world.h"

namespace rueda::test {

// Runs body(rank, engine) on `size` ranks at once; rethrows the first exception of any.
inline void run_ranks(int size, const Options& options,
                      const std::function<void(int, Engine&)>& body,
                      InprocHub* shared_hub = nullptr) {
  InprocHub own_hub(size);
  InprocHub& hub = shared_hub != nullptr ? *shared_hub : own_hub;
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        auto engine = Engine::start(inproc_world(hub, rank), options);
        engine.status().throw_if_error();
        body(rank, **engine);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
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

inline Handle submit(Engine& engine, Submission submission, int set = 0) {
  std::vector<Submission> one;
  one.push_back(std::move(submission));
  return engine.submit(set, std::move(one)).front();
}

}  // namespace rueda::test
