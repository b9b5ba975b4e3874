// Runs collectives on buffers, over whatever moves the bytes. Everything here is asynchronous: an
// operation is advanced by the engine until it is done, so that several, of overlapping process
// sets too, run at once and none waits for another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "backend/large_results.h"
#include "core/status.h"
#include "onehost/channel.h"
#include "onehost/host_collective.h"
#include "plan/algorithm_table.h"
#include "plan/leaf_tree.h"
#include "reduce/combine.h"
#include "reduce/piece.h"
#include "rueda/compression.h"
#include "rueda/types.h"
#include "transport/operation.h"
#include "transport/transfer_counters.h"
#include "transport/transport.h"

namespace rueda {

class SetHosts;

// Slots of the channels in which the members of a host meet for a set that spans hosts.
inline constexpr std::size_t stage_slot_bytes = 64 << 10;
// How many channels for what comes after the links: batches take them in turn, so that one which
// overtakes others on the links need not wait for them there.
inline constexpr std::size_t after_channels = 8;
// How many parts of one operation have messages under way at a time.
inline constexpr std::size_t parts_under_way = 4;

// Where one operation runs: its place among the ranks of a process set, and a tag of its own.
struct Lane {
  Transport* transport = nullptr;
  const std::vector<int>* members = nullptr;  // world ranks
  int rank = 0;                               // within the set
  Tag tag = {};                               // of its first part
  std::int64_t chunk_bytes = 256 << 10;
  TransferCounters* counters = nullptr;
  HostChannel* channel = nullptr;  // where all ranks of the set are on one host and share memory
  int set_id = 0;
  // Of a set that spans hosts: who is where, and where this host's members meet before something
  // goes to other hosts, and after; no channels where there is one member here.
  const SetHosts* hosts = nullptr;
  HostChannel* before_links = nullptr;
  HostChannel* after_links = nullptr;

  [[nodiscard]] int size() const { return static_cast<int>(members->size()); }
  [[nodiscard]] int world_rank(int set_rank) const {
    return (*members)[static_cast<std::size_t>(set_rank)];
  }
  [[nodiscard]] Tag tag_of(std::uint64_t part) const {
    Tag result = tag;
    result.part = part;
    return result;
  }
};

// How elements are combined, and what happens to the result before anyone else sees it.
struct Reduction {
  DataType dtype = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int contributors = 1;               // ranks of the set that have not joined
  double prescale = 1.0;              // multiplies each input
  double postscale = 1.0;             // multiplies the result
  int divisor = 1;                    // of an average
  std::optional<DataType> wire = {};  // what elements travel as, if not as they are
  Compression compression = {};       // or what is sent in their place
  // Each rank contributes partial sums of leaves, and `divisor` is the number of leaves; the input
  // of a piece is then an array for each of them, one after the other, and not null, also where a
  // rank has none. Null: each contributes one array.
  std::shared_ptr<const LeafPlan> leaves = {};
};

// One pass over the inputs of all that contribute.
[[nodiscard]] Combination combination_of(const Reduction& reduction);

struct AlltoallInput {
  const std::byte* data = nullptr;
  std::vector<std::int64_t> rows;  // for each rank of the set
  std::size_t row_bytes = 0;
  // On a GPU: of the memory that the caller has for a result of that size; the others are told.
  std::size_t output_bytes = 0;
};
// Called once it is known how many rows come from each rank; returns room for all of them.
using AllocateRows = std::function<std::byte*(const std::vector<std::int64_t>& received_rows)>;

class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;

  // Memory for a result. Throws std::bad_alloc; of a GPU it is null where there is none, and the
  // operation that is made next tells the other ranks.
  [[nodiscard]] virtual std::shared_ptr<std::byte[]> allocate(const Lane& lane, std::size_t bytes);

  // Whether ranks copy so many bytes to each other rather than reach for them, so that they may as
  // well come along with the announcement that a rank is ready: see eager.h. The same on all ranks.
  [[nodiscard]] virtual bool may_be_eager(std::size_t /*bytes*/) const { return false; }

  // The pieces are reduced together, as if they lay one after the other.
  virtual std::unique_ptr<Operation> allreduce(const Lane& lane, const Reduction& reduction,
                                               std::vector<Piece> pieces) = 0;
  // input: lengths[r] elements for rank r, or null for the identity. output: room for this rank's
  // own.
  virtual std::unique_ptr<Operation> reduce_scatter(const Lane& lane, const Reduction& reduction,
                                                    const std::byte* input, std::byte* output,
                                                    std::vector<std::int64_t> lengths) = 0;
  // input: this rank's bytes; output: room for lengths[r] bytes of each rank r.
  virtual std::unique_ptr<Operation> allgather(const Lane& lane, const std::byte* input,
                                               std::byte* output,
                                               std::vector<std::int64_t> lengths) = 0;
  // data: read at the root (a rank of the set), written elsewhere.
  virtual std::unique_ptr<Operation> broadcast(const Lane& lane, std::byte* data,
                                               std::int64_t bytes, int root) = 0;
  virtual std::unique_ptr<Operation> alltoall(const Lane& lane, AlltoallInput input,
                                              AllocateRows allocate) = 0;

 private:
  const std::shared_ptr<LargeResults> results_ = LargeResults::make();
};

// How the ranks of one host exchange so many bytes, by the table; nothing for the ring.
[[nodiscard]] std::optional<HostPolicy> policy_for(const AlgorithmTable& algorithms,
                                                   const HostPolicy& policy, std::size_t bytes);

// What the ranks of one host do in each other's memory. Where a lane has no channel, and where the
// table of algorithms says so, over rings.
[[nodiscard]] std::unique_ptr<Backend> make_onehost_backend(const AlgorithmTable& algorithms,
                                                            const HostPolicy& policy,
                                                            std::size_t kept_buffers);

// What members on several hosts do in the memory of each and over the links between them, see
// hierarchical_backend.cpp. `inner`: where a lane says nothing of hosts, and where the set's table
// of algorithms says ring.
[[nodiscard]] std::unique_ptr<Backend> make_hierarchical_backend(std::unique_ptr<Backend> inner,
                                                                 const HostPolicy& policy,
                                                                 std::size_t kept_buffers);

// Everything over rings of point-to-point messages. Keeps up to `kept_buffers` fusion buffers.
[[nodiscard]] std::unique_ptr<Backend> make_ring_backend(std::size_t kept_buffers);

}  // namespace rueda
