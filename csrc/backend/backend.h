// Runs collectives on buffers, over whatever moves the bytes. Everything here is asynchronous: an
// operation is advanced by the engine until it is done, so that several, of overlapping process
// sets too, run at once and none waits for another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "core/counter.h"
#include "core/status.h"
#include "rueda/types.h"
#include "transport/transport.h"

namespace rueda {

// What has moved, counted where it moves.
struct TransferCounters {
  Counter ring_steps;  // hops to the neighbour, however finely chunked
  Counter messages_sent;
  Counter payload_bytes_sent;
  Counter payload_bytes_received;
  Counter bytes_reduced;
};

// Where one operation runs: its place among the ranks of a process set, and a tag of its own.
struct Lane {
  Transport* transport = nullptr;
  const std::vector<int>* members = nullptr;  // world ranks
  int rank = 0;                               // within the set
  Tag tag = 0;
  std::int64_t chunk_bytes = 256 << 10;
  TransferCounters* counters = nullptr;

  [[nodiscard]] int size() const { return static_cast<int>(members->size()); }
  [[nodiscard]] int world_rank(int set_rank) const {
    return (*members)[static_cast<std::size_t>(set_rank)];
  }
};

// One collective on its way. Its buffers must outlive it.
class Operation {
 public:
  virtual ~Operation() = default;

  // Goes on as far as possible without blocking; returns whether anything moved.
  virtual bool advance() = 0;
  [[nodiscard]] virtual bool done() const = 0;
  // Meaningful once done.
  [[nodiscard]] virtual const Status& status() const = 0;
  // World ranks from or to which something is outstanding, for the message of a time-out.
  [[nodiscard]] virtual std::vector<int> awaited() const = 0;
};

// How elements are combined, and what happens to the result before anyone else sees it.
struct Reduction {
  DataType dtype = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int contributors = 1;    // what an average divides by
  double postscale = 1.0;  // multiplies the result
};

struct AlltoallInput {
  const std::byte* data = nullptr;
  std::vector<std::int64_t> rows;  // for each rank of the set
  std::size_t row_bytes = 0;
};
// Called once it is known how many rows come from each rank; returns room for all of them.
using AllocateRows = std::function<std::byte*(const std::vector<std::int64_t>& received_rows)>;

class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;

  // data: `count` elements, reduced in place.
  virtual std::unique_ptr<Operation> allreduce(const Lane& lane, const Reduction& reduction,
                                               std::byte* data, std::int64_t count) = 0;
  // data: the whole input, lengths[r] elements for rank r. Afterwards this rank's own part is the
  // result; the rest is scratch.
  virtual std::unique_ptr<Operation> reduce_scatter(const Lane& lane, const Reduction& reduction,
                                                    std::byte* data,
                                                    std::vector<std::int64_t> lengths) = 0;
  // data: the whole result, lengths[r] bytes from rank r, with this rank's own part in place.
  virtual std::unique_ptr<Operation> allgather(const Lane& lane, std::byte* data,
                                               std::vector<std::int64_t> lengths) = 0;
  virtual std::unique_ptr<Operation> broadcast(const Lane& lane, std::byte* data,
                                               std::int64_t bytes, int root) = 0;
  virtual std::unique_ptr<Operation> alltoall(const Lane& lane, AlltoallInput input,
                                              AllocateRows allocate) = 0;
};

// Everything over rings of point-to-point messages.
[[nodiscard]] std::unique_ptr<Backend> make_ring_backend();

}  // namespace rueda
