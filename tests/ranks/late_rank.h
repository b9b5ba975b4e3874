// A rank that submits a tensor only after the others have given it up. In lockstep rather than by
// sleeping: on a busy machine every sleep may be too short.
#pragma once

#include <atomic>
#include <regex>
#include <string>
#include <vector>

#include "core/strings.h"
#include "ranks/engine_ranks.h"

namespace rueda::test {

class LateRank {
 public:
  // `late`: the rank, of `size` ranks.
  LateRank(int size, int late)
      // Other ranks of a slow machine may be missing too.
      : size_(size), late_(late), names_it_(str("missing on ranks? (.*[^0-9])?", late, "\\b")) {}

  // Each rank calls this with its engine, whose stall_error is set. Submits a sum of `length`
  // floats under `name`, and checks that it stalls on all ranks with an error that names the late
  // one. Returns when all ranks have had theirs.
  void stall(int rank, Runtime& engine, const std::string& name, std::size_t length) {
    if (rank == late_) await([&] { return told_ == size_ - 1; }, "the others are told");
    std::vector<float> tensor(length, 1);
    const std::string message =
        error_of<StalledError>(run(engine, allreduce_of(tensor, DataType::float32, name)));
    expect(std::regex_search(message, names_it_), message);
    ++told_;
    await([&] { return told_ == size_; }, "the late rank is told");
  }

 private:
  const int size_;
  const int late_;
  const std::regex names_it_;
  std::atomic<int> told_ = 0;  // ranks whose submission has failed
};

}  // namespace rueda::test
