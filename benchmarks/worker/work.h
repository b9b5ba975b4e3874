// One block of calls that the driver asks for, and the values that go in and come out.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "message.h"
#include "rueda/types.h"

namespace rueda_bench {

// Part of an expected result: `count` elements of table `table`, from its element `phase` on.
struct ExpectedBlock {
  std::size_t table;
  std::size_t phase;
  std::size_t count;
};

// Values repeat with a period that is prime, so that no chunk of a collective is a multiple of it
// and an element at a wrong place is found. The driver computes them; a worker only lays them out,
// in each call from another element of the table on, so that an earlier call's result is wrong.
struct Work {
  explicit Work(Message message);

  Message message;  // the tables lie in its payload: the input's, then the expected ones
  std::string collective;
  std::string memory;  // "private" or "registered"
  rueda::DataType dtype;
  rueda::ReduceOp op;
  int root;
  std::size_t input_count;   // elements
  std::size_t output_count;  // elements; of the input where the call is in place
  bool in_place;
  int warmup;
  int iterations;
  std::chrono::nanoseconds late;  // that one rank, another in each call, enters after the others
  std::size_t period;             // elements of a table
  std::vector<ExpectedBlock> expected;

  [[nodiscard]] std::size_t element() const { return rueda::size_of(dtype); }
  [[nodiscard]] std::size_t input_bytes() const { return input_count * element(); }
  [[nodiscard]] std::size_t output_bytes() const { return output_count * element(); }
  [[nodiscard]] std::size_t shift(int iteration) const {
    return static_cast<std::size_t>(iteration) * 37 % period;
  }

  // Whether `other` asks for the same calls, if not as many.
  [[nodiscard]] bool is_like(const Work& other) const;

  // Lays the input of a call out over `input`.
  void write_input(std::byte* input, int iteration) const;
  // How many elements of `output` are not what that call should have left.
  [[nodiscard]] std::size_t count_wrong(const std::byte* output, int iteration) const;

 private:
  [[nodiscard]] const std::byte* table(std::size_t number) const {
    return message.payload.data() + number * period * element();
  }
};

}  // namespace rueda_bench
