// A rank that submits a tensor only after the others have given it up. In lockstep rather than by
// sleeping: on a busy machine every sleep may be too short.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "ranks/engine_ranks.h"

namespace rueda::test {

class LateRank {
 public:
  // `late`: the rank, of `size` ranks.
  LateRank(int size, int late) : size_(size), late_(late) {}

  // Each rank calls this with its engine, whose stall_error is set. Submits a sum of `length`
  // floats under `name`, which must stall on all ranks. Returns the error's text once all ranks
  // have had theirs.
  std::string stall(int rank, Runtime& engine, const std::string& name, std::size_t length) {
    if (rank == late_) await([&] { return told_ == size_ - 1; }, "the others are told");
    std::vector<float> tensor(length, 1);
    std::string message =
        error_of<StalledError>(run(engine, allreduce_of(tensor, DataType::float32, name)));
    ++told_;
    await([&] { return told_ == size_; }, "the late rank is told");
    return message;
  }

 private:
  const int size_;
  const int late_;
  std::atomic<int> told_ = 0;  // ranks whose submission has failed
};

}  // namespace rueda::test
