// Collectives on buffers, over whatever moves the bytes. Everything here is asynchronous: the
// engine advances an operation until it is done. So several operations run at once, on overlapping
// process sets too, and none waits for another.
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

// Slot size of the channels in which a host's members meet when their set spans hosts.
inline constexpr std::size_t stage_slot_bytes = 64 << 10;
// Number of channels for the stages after the links. Batches take them in turn, so a batch that
// overtakes others on the links need not wait for them there.
inline constexpr std::size_t after_channels = 8;
// How many parts of one operation have messages in flight at a time.
inline constexpr std::size_t parts_under_way = 4;

// Where one operation runs: its place among the ranks of a process set, and a tag of its own.
struct Lane {
  Transport* transport = nullptr;
  const std::vector<int>* members = nullptr;  // world ranks
  int rank = 0;                               // within the set
  int set_id = 0;
  Tag tag = {};  // of the operation's first part
  std::int64_t chunk_bytes = 256 << 10;
  // Of float32 that are encoded together. Unlike the above it does not depend on measured links:
  // sparse codecs choose elements per chunk, and a repeated run must choose the same ones.
  std::int64_t codec_chunk_bytes = 256 << 10;
  TransferCounters* counters = nullptr;
  HostChannel* channel = nullptr;  // set if all ranks of the set are on one host and share memory
  // For a set that spans hosts: who is where, and the channels in which this host's members meet
  // before and after the links. The channels are null if this host has only one member.
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

// How elements are combined, and what is done to the result before it is handed out.
struct Reduction {
  DataType dtype = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int contributors = 1;               // ranks of the set that have not joined
  double prescale = 1.0;              // multiplies each input
  double postscale = 1.0;             // multiplies the result
  int divisor = 1;                    // of an average
  std::optional<DataType> wire = {};  // type of elements in transit, if different
  Compression compression = {};       // or a codec for them
  // Set if each rank contributes partial sums of leaves; `divisor` is then the number of leaves. A
  // piece's input holds one array per partial sum, back to back, and is never null, even for a rank
  // that has none. Null: each rank contributes one array.
  std::shared_ptr<const LeafPlan> leaves = {};
};

// For one pass over the inputs of all contributors.
[[nodiscard]] Combination combination_of(const Reduction& reduction);

struct AlltoallInput {
  const std::byte* data = nullptr;
  std::vector<std::int64_t> rows;  // for each rank of the set
  std::size_t row_bytes = 0;
  // GPU only: room that the caller already has for the result. The ranks exchange it.
  std::size_t output_bytes = 0;
};
// Called once the number of rows from each rank is known; returns room for all of them.
using AllocateRows = std::function<std::byte*(const std::vector<std::int64_t>& received_rows)>;

class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;

  // Allocates memory for a result. Throws std::bad_alloc. A GPU backend returns null when out of
  // memory, and the operation made next reports that to the other ranks.
  [[nodiscard]] virtual std::shared_ptr<std::byte[]> allocate(const Lane& lane, std::size_t bytes);

  // Whether ranks copy tensors of this size to each other rather than read them in place. Such
  // tensors may travel with the announcement that a rank is ready: see eager.h. Same on all ranks.
  [[nodiscard]] virtual bool may_be_eager(std::size_t /*bytes*/) const { return false; }

  // Reduces the pieces together, as if they were contiguous.
  virtual std::unique_ptr<Operation> allreduce(const Lane& lane, const Reduction& reduction,
                                               std::vector<Piece> pieces) = 0;
  // input: lengths[r] elements for each rank r, or null for the identity. output: room for this
  // rank's own elements.
  virtual std::unique_ptr<Operation> reduce_scatter(const Lane& lane, const Reduction& reduction,
                                                    const std::byte* input, std::byte* output,
                                                    std::vector<std::int64_t> lengths) = 0;
  // input: this rank's bytes; output: room for lengths[r] bytes of each rank r.
  virtual std::unique_ptr<Operation> allgather(const Lane& lane, const std::byte* input,
                                               std::byte* output,
                                               std::vector<std::int64_t> lengths) = 0;
  // data: read at the root (a rank within the set), written elsewhere.
  virtual std::unique_ptr<Operation> broadcast(const Lane& lane, std::byte* data,
                                               std::int64_t bytes, int root) = 0;
  virtual std::unique_ptr<Operation> alltoall(const Lane& lane, AlltoallInput input,
                                              AllocateRows allocate) = 0;

 private:
  const std::shared_ptr<LargeResults> results_ = LargeResults::make();
};

// How the ranks of one host exchange `bytes`, by the table; nullopt means over the ring.
[[nodiscard]] std::optional<HostPolicy> policy_for(const AlgorithmTable& algorithms,
                                                   const HostPolicy& policy, std::size_t bytes);

// Collectives of the ranks of one host in each other's memory. Falls back to rings if a lane has no
// channel or the algorithm table says so.
[[nodiscard]] std::unique_ptr<Backend> make_onehost_backend(const AlgorithmTable& algorithms,
                                                            const HostPolicy& policy,
                                                            std::size_t kept_buffers);

// Collectives of members on several hosts, in each host's memory and over the links between hosts;
// see hierarchical_backend.cpp. `inner` serves lanes without `hosts`, and sizes for which the set's
// algorithm table says ring.
[[nodiscard]] std::unique_ptr<Backend> make_hierarchical_backend(std::unique_ptr<Backend> inner,
                                                                 const HostPolicy& policy,
                                                                 std::size_t kept_buffers);

// Runs everything over rings of point-to-point messages. Keeps up to `kept_buffers` fusion buffers.
[[nodiscard]] std::unique_ptr<Backend> make_ring_backend(std::size_t kept_buffers);

}  // namespace rueda
