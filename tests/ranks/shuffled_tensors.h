// Tensors "t0", "t1", ... of different lengths, which each rank submits in a different order.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "core/strings.h"
#include "ranks/engine_ranks.h"

namespace rueda::test {

class ShuffledTensors {
 public:
  ShuffledTensors(int count, int rank)
      : random_(static_cast<unsigned>(rank) + 1),
        order_(static_cast<std::size_t>(count)),
        rank_(rank) {
    std::iota(order_.begin(), order_.end(), 0);
  }

  static std::size_t length(int tensor) { return static_cast<std::size_t>(tensor * 40 + 1); }

  // Reduces all of them at once, over a world of `size` ranks.
  void reduce(Runtime& engine, int size) {
    std::vector<std::vector<float>> data;
    for (int i = 0; i < static_cast<int>(order_.size()); ++i) {
      data.emplace_back(length(i), static_cast<float>(rank_ + i));
    }
    std::shuffle(order_.begin(), order_.end(), random_);
    std::vector<Handle> handles;
    for (const int i : order_) {
      handles.push_back(submit(
          engine, allreduce_of(data[static_cast<std::size_t>(i)], DataType::float32, str("t", i))));
    }
    for (const Handle& handle : handles) finish(handle);
    for (int i = 0; i < static_cast<int>(order_.size()); ++i) {
      const auto expected = static_cast<float>(size * (size - 1) / 2 + size * i);
      expect(data[static_cast<std::size_t>(i)].back() == expected, "the sum");
    }
  }

 private:
  std::mt19937 random_;
  std::vector<int> order_;
  int rank_;
};

}  // namespace rueda::test
