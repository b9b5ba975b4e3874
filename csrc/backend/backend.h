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

#include "core/clock.h"
#include "core/counter.h"
#include "core/status.h"
#include "onehost/channel.h"
#include "onehost/host_collective.h"
#include "plan/algorithm_table.h"
#include "plan/leaf_tree.h"
#include "reduce/combine.h"
#include "reduce/piece.h"
#include "rueda/compression.h"
#include "rueda/types.h"
#include "transport/transport.h"

namespace rueda {

class DeviceEvent;
class SetHosts;

// What has moved, counted where it moves.
struct TransferCounters {
  Counter ring_steps;  // hops to the neighbour, however finely chunked
  Counter messages_sent;
  Counter payload_bytes_sent;
  Counter payload_bytes_received;
  Counter bytes_reduced;
  Counter bytes_taken;           // of other ranks' memory on this host, copied from where it lies
  Counter bytes_through_kernel;  // of it: not visible here, so read or written by the kernel
  Counter bytes_staged;          // copied between a GPU and the host
  // Also by threads of the application that start persistent operations.
  SharedCounter nccl_calls;    // collectives that NCCL was given, a group counting as one
  SharedCounter gpu_launches;  // of kernels that pack or unpack a batch
  SharedCounter bytes_packed;  // copied into and out of fusion buffers and staging
};

// Slots of the channels in which the members of a host meet for a set that spans hosts.
inline constexpr std::size_t stage_slot_bytes = 64 << 10;
// How many channels for what comes after the links: batches take them in turn, so that one which
// overtakes others on the links need not wait for them there.
inline constexpr std::size_t after_channels = 8;
// How many tags an operation has, for messages that may overtake each other.
inline constexpr Tag tags_per_batch = 4;

// Where one operation runs: its place among the ranks of a process set, and a tag of its own.
struct Lane {
  Transport* transport = nullptr;
  const std::vector<int>* members = nullptr;  // world ranks
  int rank = 0;                               // within the set
  Tag tag = 0;                                // and those that follow, see tags_per_batch
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

  // Whether its bytes go through the transport, which has to be driven and slept upon then; others
  // are woken through shared memory.
  [[nodiscard]] virtual bool uses_transport() const { return true; }

  // Whether other work of this rank has to come first, however long that takes.
  [[nodiscard]] virtual bool waits_for_its_turn() const { return false; }

  // Whether nothing tells when it can go on: it must be asked again and again.
  [[nodiscard]] virtual bool must_be_polled() const { return false; }

  // Whether it failed in the same way on all ranks, before any of them touched a tensor: the world
  // can go on.
  [[nodiscard]] virtual bool failed_everywhere() const { return false; }

  // Whether what became of one piece of a batch, which went well as a whole, is of no use: in the
  // same way on all ranks. Meaningful once done.
  [[nodiscard]] virtual Status status_of_piece(std::size_t /*piece*/) const { return {}; }

  // On a GPU: what streams wait for. Meaningful once done, which is when all has been enqueued.
  [[nodiscard]] virtual std::shared_ptr<DeviceEvent> finished() const { return nullptr; }

  // What it did when, for the timeline; in order, meaningful once done.
  struct Phase {
    std::string_view name;
    Time begin;
    Time end;
  };
  [[nodiscard]] virtual std::vector<Phase> phases() const { return {}; }
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
