// Rueda's C++ API: collectives across processes that agree on their order in the background.
//
//   rueda::init();
//   std::vector<float> gradient = ...;
//   rueda::TensorView view{gradient.data(), {1000}, rueda::DataType::float32};
//   rueda::Handle handle = rueda::allreduce(view, gradient.data(), {.name = "layer1.weight"});
//   ...                                   // runs while the tensor is reduced
//   handle.wait();                        // throws rueda::MismatchError, PeerLostError, ...
//   rueda::shutdown();
//
// Every function may be called from any thread. Operations match across ranks by name. Unnamed
// operations match by their number within the process set, so ranks must submit them in the same
// order. Every rank of the set must take part in every operation.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rueda/compression.h"
#include "rueda/error.h"
#include "rueda/leaves.h"
#include "rueda/types.h"

namespace rueda {

struct HandleState;

// The result of an operation whose result size only the negotiation determines, in memory of its
// own.
struct Output {
  std::shared_ptr<std::byte[]> data;  // row-major, 64-byte aligned; null if the caller provided
                                      // memory. On a GPU see Handle::release_output()
  Shape shape;                        // of the result
  std::vector<std::int64_t> received_splits;  // alltoall: rows received from each rank of the set
  int last_joined_rank = -1;                  // join: the rank that joined last
  int source = -1;                            // recv: the rank that sent
  int device = host_device;                   // to which `data` belongs
};

// The future of one operation. Copies refer to the same operation. Dropping every copy does not
// cancel it: the tensor must stay valid until the operation has completed.
//
// On a GPU, an operation is done, in the sense of this class, once all its work has been enqueued
// there: the host does not wait for the GPU. Streams do; see wait_on().
//
// In a child made by fork(), operations that the parent started never complete: waiting for one
// throws NotInitializedError.
class Handle {
 public:
  // Refers to no operation: may be copied, assigned to, and asked for valid(). Everything else
  // throws InvalidArgumentError.
  Handle() = default;
  explicit Handle(std::shared_ptr<HandleState> state) : state_(std::move(state)) {}

  [[nodiscard]] bool valid() const { return state_ != nullptr; }
  // Completed, successfully or with an error.
  [[nodiscard]] bool done() const;
  // Blocks until done; throws the operation's error.
  void wait() const;
  // Like wait(), but gives up after `timeout`: false if not done by then.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout) const;
  // Waits, then returns the result. On a temporary, returns a copy that shares the memory.
  [[nodiscard]] const Output& output() const&;
  [[nodiscard]] Output output() const&&;
  // Like wait(), and what `stream` (of the tensor's device) enqueues afterwards sees the result. On
  // host tensors the same as wait(). If the world breaks while the GPU is still working, the error
  // comes before the GPU has finished: free such tensors after shutdown().
  void wait_on(void* stream) const;
  // Waits, then declares that only what `stream` (of the tensor's device) has enqueued so far uses
  // output().data, and nothing enqueued later. `data` may then be dropped at once; its memory is
  // reused for another result when the stream gets there. GPU memory that is not released may be
  // dropped only when the work that uses it is done. Does nothing on the host.
  //
  //     handle.wait_on(stream);
  //     copy(mine, handle.output().data.get(), stream);
  //     handle.release_output(stream);
  void release_output(void* stream) const;

  [[nodiscard]] const std::shared_ptr<HandleState>& state() const { return state_; }

 private:
  std::shared_ptr<HandleState> state_;
};

// --- Life ---------------------------------------------------------------------------------------

// Forms the world; does nothing if it already exists. Ranks find each other through MPI under
// mpirun, through the rendezvous of `rueda run` without MPI, through PMI under MPICH's mpiexec and
// `srun --mpi=pmi2`. Under plain srun or torchrun, or wherever RANK, WORLD_SIZE, MASTER_ADDR and
// MASTER_PORT are set, ranks on one host meet through a Unix socket, ranks on several over TCP with
// RUEDA_SECRET (docs/hosts.md). Without a launcher the world has one rank. `options` override the
// environment (names as in docs/options.md, e.g. {"fusion_threshold", "16M"}). Throws
// InitializationError, for example if a launcher announces more ranks and they cannot be found.
void init(const std::map<std::string, std::string>& options = {});
// Leaves the world: finishes what every rank has agreed on, fails the rest with ShutdownError, here
// and on the ranks that wait for this one. init() may follow. Called automatically at exit.
void shutdown();
// Whether this process is in a world.
[[nodiscard]] bool is_initialized();
// What recover() found.
struct Recovery {
  std::uint64_t epoch = 0;          // of the new world: higher than any before
  std::vector<int> previous_ranks;  // for each new rank, its rank in the world that broke
  struct Lost {
    int rank = 0;  // in the world that broke
    std::string cause;
    // unreachable: this rank got no answer from it, but it may still be alive, on its host or
    // behind a broken link. `rueda run` then ends it, since the others have continued without it.
    ErrorReason reason = ErrorReason::unspecified;
    std::string host = {};
    int process_id = 0;
  };
  std::vector<Lost> lost;  // by rank
  // What was pending on this rank when the world broke, e.g. "allreduce of 'x'"; the first of many.
  std::vector<std::string> interrupted = {};
};
// Enters the world formed by the survivors of one that broke or that a rank has left cleanly.
// Collective over them, but no rank waits for another to call it: the world is formed in the
// background. Ranks are renumbered in their old order. Process sets keep their numbers and their
// surviving members; a set that was being added or removed is gone, and groups must be created
// again. Needs init({{"recovery", "on"}}). Throws InvalidArgumentError if the world is whole,
// PeerLostError if this rank must stop (it is in a minority, the others have gone on without it, or
// fewer than the option min_np are left), TimeoutError after `timeout` seconds, after which it may
// be called again. With `break_whole`, a whole world is broken first, as by a failure of this rank,
// and formed again from all ranks.
Recovery recover(double timeout = 60, bool break_whole = false);
// Tells the other ranks that this one failed and why: they raise PeerLostError with `cause`
// immediately. For a process that is about to exit because of an error.
void abort(const std::string& cause);

// --- Who is there -------------------------------------------------------------------------------

// Rank and number of ranks: in the world, among the ranks of this host, and among the ranks with
// the same local rank on each host. Throw NotInitializedError before init().
[[nodiscard]] int rank();
[[nodiscard]] int size();
[[nodiscard]] int local_rank();
[[nodiscard]] int local_size();
[[nodiscard]] int cross_rank();
[[nodiscard]] int cross_size();
[[nodiscard]] bool is_homogeneous();  // every host has the same number of ranks

// A set of ranks, in ascending order. 0 is the world.
struct ProcessSet {
  int id = 0;
};

// Collective over the world: every rank gives the same ranks (world ranks, distinct, in any order).
// Throws InvalidArgumentError for ranks that do not exist, MismatchError where ranks disagree.
ProcessSet add_process_set(std::vector<int> ranks);
// Collective over the world. The world itself cannot be removed.
void remove_process_set(ProcessSet set);
// The ranks of a set; empty if all its members are lost.
[[nodiscard]] std::vector<int> ranks_of(ProcessSet set);
// The rank of this process within the set, or -1 if it is not a member.
[[nodiscard]] int rank_in(ProcessSet set);
// The numbers of all existing sets.
[[nodiscard]] std::vector<int> process_set_ids();

// How many sets of one rank may exist at a time: this many known to all ranks, and as many again
// known only to their members.
inline constexpr int process_set_limit = 511;

// Numbers of sets that only their members know. `slot`, from 0 to process_set_limit - 1: one in
// which no member has another such set. `generation`, from 0 to group_generations - 1: one that the
// slot has not had before in this world. Throws InvalidArgumentError, which names the limit, for
// values out of range.
inline constexpr int group_generations = 2'000'000;
// The number made of a slot and a generation.
[[nodiscard]] int group_number(int slot, int generation);
// The slot of such a set.
[[nodiscard]] int group_slot(ProcessSet set);
// The first of these numbers: all ranks know the sets below it.
inline constexpr int first_formed_set = 1 << 30;

// Creates a set that only its members know. Only they call this, with the same ranks and a number
// from group_number() that they have agreed on among themselves. Members need not call at the same
// time. Throws InvalidArgumentError, also if the number was used before or its slot is taken on
// this rank, and UnsupportedError if this rank has no room for it. Then the set ends for the other
// members, as after destroy_group(); the number is used up all the same.
ProcessSet create_group(int number, const std::vector<int>& ranks);
// This member has finished with such a set. Operations that all members have agreed on finish; what
// others submit from now on fails with ShutdownError.
void destroy_group(ProcessSet set);

// --- Collectives --------------------------------------------------------------------------------

struct AllreduceOptions {
  std::string name = {};  // empty: numbered
  ReduceOp op = ReduceOp::average;
  double prescale_factor = 1.0;   // multiplies each rank's input before the reduction
  double postscale_factor = 1.0;  // multiplies the result
  ProcessSet process_set = {};
  // Among operations that all ranks are ready for, the one with the highest priority goes first.
  // Between hosts over TCP it also overtakes operations in progress, chunk by chunk. Must be the
  // same on every rank. Tensors with different priorities share no fusion buffer. This is a hint,
  // not a guarantee.
  std::int32_t priority = 0;
  // The type in which elements of float32 and float64 tensors travel: float16, bfloat16 or float32.
  // They are converted when packed, after `prescale_factor` is applied, and back when unpacked.
  // Tensors of other types, and those that are no wider, travel unchanged. Any other type is an
  // UnsupportedError on every rank, and so is a persistent operation of the CPU with wire_dtype.
  std::optional<DataType> wire_dtype = {};
  // Alternatively, what to send instead of the elements of floating-point CPU tensors: see
  // docs/compression.md. Sums and averages only. Tensors of other types travel unchanged, and so do
  // 16-bit types if the codec is a 16-bit type. If a tensor contains, on one rank or in the sum, a
  // NaN, an infinity or a number that the codec cannot hold, the operation fails with
  // InvalidArgumentError on every rank (ErrorReason::not_finite), and its output is undefined.
  Compression compression = {};
  // With a compression: an array of float32 for each tensor, one per element, or none (error
  // feedback). What the codec lost of a tensor's last contribution is added to this one, after
  // `prescale_factor` is applied, and replaced by what it loses now. Initially zeros; each rank has
  // its own.
  std::vector<float*> residuals = {};
  // With residuals of a sparse codec: an array of float32 for each tensor, one per element, or
  // none, and a factor of at least 0 and below 1. The contribution is u = momentum * u + input
  // instead of the input, and u becomes 0 where an element travels: momentum correction and
  // momentum factor masking (Lin et al., "Deep gradient compression", ICLR 2018, sections 3.2 and
  // 3.3). Initially zeros; each rank has its own.
  std::vector<float*> velocities = {};
  double momentum = 0;
  // random_k: chooses the elements. Results are small if all ranks pass the same number; training
  // needs a different one in each step.
  std::uint64_t seed = 0;
  // For each leaf, the rank of the set that computed it, e.g. from divide_leaves(); the same on
  // every rank (rueda/leaves.h). The input's memory then holds an array of the given shape for each
  // of this rank's partial sums, one after the other (schedule_of() says which; with none, any
  // address), and the result is the root of the tree over the leaves. An average divides by the
  // number of leaves. The bits of the result do not depend on how many ranks there are or who
  // computes what. `output` may be the first partial sum. CPU only, without a compression or a
  // prescale factor; anything else is an UnsupportedError on every rank. Empty: each rank
  // contributes one array.
  std::vector<int> leaf_ranks = {};
};

// output[i] = op over ranks of input[i]. `output` has room for the input and may be the input
// itself. The result is bitwise identical on every rank.
Handle allreduce(const TensorView& input, void* output, const AllreduceOptions& options = {});
// An allreduce() that waits for its result: the calling thread does the work, so no other thread
// wakes up. A small tensor that was reduced under its name before takes a fraction of the time if
// all ranks arrive within a few microseconds. Throws what Handle::wait() does.
void allreduce_blocking(const TensorView& input, void* output,
                        const AllreduceOptions& options = {});
// Reduces several tensors together: none completes before all are ready on all ranks.
std::vector<Handle> grouped_allreduce(std::span<const TensorView> inputs,
                                      std::span<void* const> outputs,
                                      const AllreduceOptions& options = {});

// Memory of the caller, on the same device as the input, for the result of an allgather,
// reduce_scatter or alltoall. If the result has exactly this many bytes, it is written there and
// Output::data is null; otherwise the engine allocates memory. It must not be used until the handle
// has completed; on a GPU, until a stream that has waited for the handle gets there. It must not
// overlap the input, except that the input of an allgather may be this rank's part of the result,
// and the result of a reduce_scatter this rank's part of the input.
struct ResultMemory {
  void* data = nullptr;
  std::size_t bytes = 0;
};

struct CallOptions {
  std::string name = {};
  ProcessSet process_set = {};
  ResultMemory result = {};  // not for broadcast and barrier, which have no result of their own
};

// Concatenates along the first dimension, in rank order. First extents may differ; the others and
// the dtype must agree. The result is in Handle::output().
Handle allgather(const TensorView& input, const CallOptions& options = {});

// Copies the root's data to every rank. `tensor` is read at `root` (a world rank that is a member
// of the set; any other fails with InvalidArgumentError) and written elsewhere.
Handle broadcast(const TensorView& tensor, int root, const CallOptions& options = {});

struct ReduceScatterOptions {
  std::string name = {};
  ReduceOp op = ReduceOp::average;
  double prescale_factor = 1.0;
  double postscale_factor = 1.0;
  // Rows of the result for each rank of the set. Empty: as even as possible, earlier ranks get one
  // more.
  std::vector<std::int64_t> splits = {};
  ProcessSet process_set = {};
  ResultMemory result = {};
};

// Reduces, then gives each rank its rows of the first dimension, in Handle::output().
Handle reduce_scatter(const TensorView& input, const ReduceScatterOptions& options = {});

// Sends splits[r] rows of the input to rank r (empty: evenly; the first extent must be divisible)
// and concatenates what arrives, in rank order, in Handle::output(), with `received_splits`.
Handle alltoall(const TensorView& input, const std::vector<std::int64_t>& splits = {},
                const CallOptions& options = {});

// Completes when every rank of the set has called it.
Handle barrier(const CallOptions& options = {});

// Like the function without `_blocking`, but waits for the result: the calling thread does the
// work, so no other thread wakes up. Returns what Handle::output() does, and throws what
// Handle::wait() does.
Output allgather_blocking(const TensorView& input, const CallOptions& options = {});
void broadcast_blocking(const TensorView& tensor, int root, const CallOptions& options = {});
Output reduce_scatter_blocking(const TensorView& input, const ReduceScatterOptions& options = {});
Output alltoall_blocking(const TensorView& input, const std::vector<std::int64_t>& splits = {},
                         const CallOptions& options = {});
void barrier_blocking(const CallOptions& options = {});

// Says that this rank has no more data: until all ranks have joined, it contributes each
// operation's identity to the others' allreduce, reduce_scatter, allgather and broadcast. Completes
// when all have joined; Output::last_joined_rank is the last one. An average divides by the number
// of ranks that contributed, or with join_average=all by all ranks. A barrier counts joined ranks
// as arrived. An alltoall, an allreduce of leaves, and a broadcast whose root has joined fail with
// InvalidArgumentError on all ranks.
Handle join(const CallOptions& options = {});

// Says that this rank cannot take part in the operation `name`, for example because its tensor is
// not contiguous. The handle of every rank of the set fails with the error of `code`, which names
// this rank and `why`, instead of waiting for it. With `group_size`, the same for a grouped
// operation of that many tensors. `reason` is for programs that treat some refusals differently.
// Throws InvalidArgumentError, on this rank alone, for a `code` that is not an error and a negative
// `group_size`.
Handle refuse(const std::string& name, ProcessSet process_set, const std::string& why,
              ErrorCode code = ErrorCode::invalid_argument, int group_size = 0,
              ErrorReason reason = ErrorReason::unspecified);

// --- Point to point -----------------------------------------------------------------------------

struct MessageOptions {
  std::int64_t tag = 0;
  ProcessSet process_set = {};
  // Otherwise a message whose other side has not come after RUEDA_STALL_WARNING seconds is
  // reported.
  bool may_wait_long = false;
};
inline constexpr int any_source = -1;

// Sends a tensor to `target`, a world rank that is a member of the set and receives it under the
// same tag. Messages with the same sender, tag and set arrive in order; sends and receives of
// different ranks and tags never wait for each other. The handle completes when the tensor may be
// written again. For up to 4096 bytes that is at once, while less than 1 MiB of such messages waits
// at the receiver; otherwise it is when the receiver takes it. Fails with MismatchError on both
// sides if the dtype or the number of elements differs (the sender of a small message is not told),
// with ShutdownError if the receiver leaves.
Handle send(const TensorView& tensor, int target, const MessageOptions& options = {});
// Receives into `tensor` from `source`, or from any rank; Output::source is the sender's rank.
Handle recv(const TensorView& tensor, int source, const MessageOptions& options = {});

// --- Completion ---------------------------------------------------------------------------------

class CompletionInbox;

// Collects the completions of many handles, so that one thread can wait for all of them:
//
//   queue.watch(handle, 7);
//   for (std::uint64_t token : queue.wait(std::chrono::seconds(1))) ...   // 7, once it is done
//
// Any thread may call any function.
class CompletionQueue {
 public:
  CompletionQueue();
  // wait() returns `token` once the handle is done, successfully or with an error; at once if it
  // already is. Throws InvalidArgumentError if the handle is already watched.
  void watch(const Handle& handle, std::uint64_t token);
  // Blocks until something has completed; empty after the timeout, nudge() or close().
  [[nodiscard]] std::vector<std::uint64_t> wait(std::chrono::nanoseconds timeout);
  // Ends the current wait(), or the next one.
  void nudge();
  // Ends every wait(), now and later.
  void close();
  [[nodiscard]] bool is_closed() const;

 private:
  std::shared_ptr<CompletionInbox> inbox_;
};

// --- Memory and observation ---------------------------------------------------------------------

// Memory that the other ranks of the host can reach directly, so that operations on it need no
// copy: zeroed, aligned to 64 bytes, from 2 MiB on to 2 MiB and on huge pages where the system
// gives them. It is freed with the pointer, and stays valid over shutdown() and init(). Ordinary
// memory where the system gives no such memory, or not so much. What a child process writes there
// is its own. Throws std::bad_alloc, also for what is beyond the limit of this process's control
// group (a container, a job of Slurm), where the kernel would end the process.
[[nodiscard]] std::shared_ptr<std::byte[]> allocate(std::size_t bytes);

// Says that a tensor in ordinary memory stays where it is and will be reduced there repeatedly by
// `process_set`. Persistent operations need no such call. The tensor moves to huge pages if the
// ranks of this host reach it through the kernel (RUEDA_HUGE_PAGES). One call is enough; it may
// take some milliseconds per 2 MiB. It preserves the contents, even while the tensor is being
// reduced. Returns the bytes that are on huge pages now; 0 if that would not help. Throws
// NotInitializedError.
std::size_t settle_tensor(const void* tensor, std::size_t bytes, ProcessSet process_set = {});

// Whether all ranks are on this host and read and write each other's ordinary memory through the
// kernel, so that a large tensor is reduced in place. Throws NotInitializedError.
[[nodiscard]] bool has_direct_access();

// How an allreduce of `bytes` is done in the world, and how long it should take according to the
// measurement at init (µs; 0 if nothing was measured; with several hosts, the time on the links).
struct AlgorithmChoice {
  // On one host "line" (in one cache line), "flat", "staged" or "direct"; across hosts
  // "hierarchical", "doubling", "halving" or "tree"; and "ring".
  std::string algorithm;
  std::string registered;  // the same for tensors from allocate()
  double predicted_us = 0;
  double predicted_registered_us = 0;
};
[[nodiscard]] AlgorithmChoice choose_algorithm(std::int64_t bytes);

// A kind of link that was tried between hosts at init; the numbers are those of its slowest link.
struct HostLink {
  std::string transport;  // "mpi", "tcp"
  double latency_us = 0;
  double gbit_per_second = 0;
  std::string obstacle;  // why it cannot be used; empty where it can
};
// The links that were tried, the one in use first (RUEDA_TRANSPORT forces one, and then no other is
// tried). Empty on one host. In a later world, as after recover(), the links in use with the
// figures of then. Throws NotInitializedError.
[[nodiscard]] std::vector<HostLink> host_links();

// Counters of this process since init(), in all its worlds, by name (docs/observability.md lists
// them).
[[nodiscard]] std::map<std::string, std::int64_t> metrics();
// For optimizers: a parameter has no gradient on this rank, and zeros are reduced in its place.
// Counts it in the counter gradients_filled.
void count_filled_gradient();
// How a timeline names and lays out its events: as docs/observability.md tells, or as Horovod does,
// for tools that read Horovod's.
enum class TimelineFormat : std::uint8_t { rueda, horovod };
// Begins to write a Chrome trace of every tensor to `path`, as the option `timeline` does from
// init() on: %r in it stands for the rank; without %r, rank 0 alone writes. Each rank by itself. It
// goes on in the worlds that follow. To call this again with the same arguments has no effect, so
// code that is run again in each world may do so. In a later world a file that this process has not
// begun itself is not replaced, since another rank may still be writing it: the new one is
// <path>.epoch<number>, with the world's number.
// `mark_cycles`, in Horovod's format: mark where tensors that were agreed on together begin.
// Throws InvalidArgumentError while another one is being written, InitializationError where `path`
// cannot be.
void start_timeline(const std::string& path, TimelineFormat format = TimelineFormat::rueda,
                    bool mark_cycles = false);
// Ends the file that is being written, if any.
void stop_timeline();
// Writes this rank's most recent operations to the folder given by the option `flight_recorder`, as
// also happens when the world fails or stalls; `rueda analyze` reads the file. Throws
// InvalidArgumentError if the option is not set, InitializationError if the file cannot be written.
void write_flight_record();
// The effective options, by name.
[[nodiscard]] std::map<std::string, std::string> options();

}  // namespace rueda
