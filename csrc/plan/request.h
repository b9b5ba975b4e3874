// What one rank wants: the unit of negotiation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "rueda/compression.h"
#include "rueda/types.h"

namespace rueda {

enum class Collective : std::uint8_t {
  allreduce,
  allgather,
  broadcast,
  reduce_scatter,
  alltoall,
  barrier,
  join,
  add_process_set,
  remove_process_set,
  persistent_allreduce,  // agrees on an allreduce that will run many times
  leave,                 // this rank is shutting down
};

[[nodiscard]] std::string_view name_of(Collective collective);
// Whether ranks submit a tensor for it.
[[nodiscard]] bool has_tensor(Collective collective);

// Why no tensor can have that shape; empty if one can. Before this is known, nothing may be
// computed from the extents.
[[nodiscard]] std::string flaw_of(const Shape& shape, DataType dtype);

struct Request {
  std::string name;
  Collective collective = Collective::allreduce;
  DataType dtype = DataType::float32;
  std::optional<DataType> wire;  // allreduce: the type in which elements travel, if another
  Compression compression;       // allreduce: or what is sent instead of them
  // allreduce: for each leaf, the rank of the set that has computed it (rueda/leaves.h); empty:
  // each rank contributes one tensor.
  std::vector<int> leaf_ranks;
  ReduceOp op = ReduceOp::sum;
  bool on_gpu = false;        // the tensor is in a GPU's memory
  std::int32_t priority = 0;  // higher ones go first
  double prescale = 1.0;
  double postscale = 1.0;
  int root = -1;  // broadcast: rank within the process set
  Shape shape;    // of this rank's input
  // reduce_scatter: rows for each rank of the set, empty for an even division. (An alltoall's are
  // not negotiated: each pair of ranks settles its own sizes.)
  std::vector<std::int64_t> splits;
  // allgather, reduce_scatter, alltoall: bytes of the memory that this rank has for a result of
  // that size. For the first two on a GPU this is negotiated: 0 unless all ranks agree.
  std::size_t output_bytes = 0;
  std::vector<int> set_ranks;  // add_process_set: the world ranks of the new set
  int set_id = -1;             // remove_process_set: the set's number
  // Requests with the same non-empty group are released together, once all `group_size` are ready.
  std::string group;
  int group_size = 0;
  // If not ok: this rank cannot take part, and every rank is told why.
  Status error;
  int other_set = -1;  // with an error: the set for which this rank has submitted the name instead

  [[nodiscard]] std::int64_t count() const { return element_count(shape); }
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(count()) * size_of(dtype);
  }
  // The bytes at one index of the first dimension, which must exist.
  [[nodiscard]] std::size_t row_bytes() const;
};

// The first field in which two requests of the same name differ but may not, with both values in
// readable form; empty if they agree. allgather and alltoall may differ in their first extent.
struct Difference {
  std::string_view field;
  std::string left;
  std::string right;
};
[[nodiscard]] std::optional<Difference> compare(const Request& left, const Request& right);

// Whether what was agreed on also holds for `request`, which otherwise agrees with it: no rank may
// be assumed to have memory for a result that it does not have.
[[nodiscard]] inline bool covers_output(const Request& agreed, const Request& request) {
  return agreed.output_bytes == 0 || agreed.output_bytes == request.output_bytes;
}

// What is wrong with a request on its own (average of booleans, root out of range, ...), without
// its name; ok if nothing is. `set_size` is the size of the process set.
[[nodiscard]] Status validate(const Request& request, int set_size);

}  // namespace rueda
