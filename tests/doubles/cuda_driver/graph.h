// What a stream is given while it is captured: run again with each launch.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "cuda_double.h"

namespace rueda::test {

class Graph final : public CudaGraph {
 public:
  // One node. Called at each launch, in the order of the launches; what it returns is what the
  // stream does.
  using Node = CudaDouble::MakeStep;

  explicit Graph(int device) : device_(device) {}
  [[nodiscard]] int device() const { return device_; }
  void add(Node node) {
    const std::lock_guard lock(mutex_);
    nodes_.push_back(std::move(node));
  }
  [[nodiscard]] std::vector<Node> nodes() const {
    const std::lock_guard lock(mutex_);
    return nodes_;
  }
  [[nodiscard]] std::size_t size() const override { return nodes().size(); }

 private:
  const int device_;
  mutable std::mutex mutex_;
  std::vector<Node> nodes_;
};

// How many streams are being captured in this process, and by this thread.
int& captures_of_this_thread();

}  // namespace rueda::test
