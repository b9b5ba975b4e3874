#include "work.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <stdexcept>

namespace rueda_bench {
namespace {

rueda::DataType dtype_named(const std::string& name) {
  for (const rueda::DataTypeInfo& row : rueda::data_types) {
    if (row.name == name) return row.id;
  }
  throw std::runtime_error("unknown dtype " + name);
}

rueda::ReduceOp op_named(const std::string& name) {
  const auto& names = rueda::reduce_op_names;
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) throw std::runtime_error("unknown operation " + name);
  return static_cast<rueda::ReduceOp>(found - names.begin());
}

// "table,phase,count table,phase,count ..."
std::vector<ExpectedBlock> parse_blocks(const std::string& text) {
  std::vector<ExpectedBlock> blocks;
  std::istringstream stream(text);
  ExpectedBlock block{};
  char comma = 0;
  while (stream >> block.table >> comma >> block.phase >> comma >> block.count)
    blocks.push_back(block);
  return blocks;
}

// Calls `visit(offset, table offset, bytes)` for the pieces of `bytes` that repeat a table.
template <class Visit>
void tile(std::size_t bytes, std::size_t table_bytes, std::size_t start, const Visit& visit) {
  for (std::size_t at = 0; at < bytes;) {
    const std::size_t piece = std::min(table_bytes - start, bytes - at);
    visit(at, start, piece);
    at += piece;
    start = 0;
  }
}

}  // namespace

Work::Work(Message given)
    : message(std::move(given)),
      collective(message.text("collective")),
      memory(message.text("memory")),
      dtype(dtype_named(message.text("dtype"))),
      op(op_named(message.text("op"))),
      root(static_cast<int>(message.number("root"))),
      input_count(static_cast<std::size_t>(message.number("input_count"))),
      output_count(static_cast<std::size_t>(message.number("output_count"))),
      in_place(message.number("in_place") != 0),
      warmup(static_cast<int>(message.number("warmup"))),
      iterations(static_cast<int>(message.number("iterations"))),
      late(message.number("late")),
      period(static_cast<std::size_t>(message.number("period"))),
      expected(parse_blocks(message.text("expected"))) {
  std::size_t tables = 1;
  for (const ExpectedBlock& block : expected) tables = std::max(tables, block.table + 1);
  if (period == 0 || message.payload.size() < tables * period * element())
    throw std::runtime_error("the driver's message lacks values");
}

bool Work::is_like(const Work& other) const {
  const auto asked = [](const Work& work) {
    auto values = work.message.values;
    values.erase("warmup");
    values.erase("iterations");
    return values;
  };
  return asked(*this) == asked(other) && message.payload == other.message.payload;
}

void Work::write_input(std::byte* input, int iteration) const {
  const std::byte* const values = table(0);
  tile(input_bytes(), period * element(), shift(iteration) * element(),
       [&](std::size_t at, std::size_t from, std::size_t bytes) {
         std::memcpy(input + at, values + from, bytes);
       });
}

std::size_t Work::count_wrong(const std::byte* output, int iteration) const {
  std::size_t wrong = 0;
  for (const ExpectedBlock& block : expected) {
    const std::byte* const values = table(block.table);
    const std::size_t start = (block.phase + shift(iteration)) % period * element();
    tile(block.count * element(), period * element(), start,
         [&](std::size_t at, std::size_t from, std::size_t bytes) {
           if (std::memcmp(output + at, values + from, bytes) == 0) return;
           for (std::size_t i = 0; i < bytes; i += element())
             wrong += std::memcmp(output + at + i, values + from + i, element()) != 0 ? 1 : 0;
         });
    output += block.count * element();
  }
  return wrong;
}

}  // namespace rueda_bench
