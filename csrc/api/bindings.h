// What bindings for other languages need beyond the public headers: waiting in parts, so that they
// can do something else in between, as Python does after signals; and facts about the build.
// csrc/bindings/ includes this, csrc/core/ and the public headers, and nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/persistent_run.h"
#include "backend/gpu_support.h"
#include "core/clock.h"
#include "membership/host.h"
#include "reduce/fingerprint.h"
#include "reduce/key_samples.h"
#include "reduce/row_sums.h"
#include "rueda/rueda.h"

namespace rueda {

// The address at which ranks of other hosts reach this one; `interface`: Options::interface. Throws
// InitializationError if that is neither an interface nor an address of this host.
[[nodiscard]] std::string own_address(const std::string& interface);

// Waits until the operation is done, the deadline has passed or a signal handler has run in this
// thread. Does not throw the operation's error; Handle::wait() does.
void wait_once(const Handle& handle, Time deadline);

// Like allreduce() etc., for a caller that waits at once: it does the work itself, and no other
// thread wakes. They return when the operation is done, the deadline has passed or a signal handler
// has run; in the last two cases the operation continues, and its handle can be waited for.
[[nodiscard]] Handle allreduce_blocking(const TensorView& input, void* output,
                                        const AllreduceOptions& options,
                                        std::optional<Time> deadline);
// An allreduce of one host tensor with defaults for everything else. Holds references to the
// caller's data.
struct PlainAllreduce {
  std::string_view name;  // empty: numbered
  const void* input = nullptr;
  void* output = nullptr;
  std::span<const std::int64_t> shape = {};
  DataType dtype = DataType::float32;
  ReduceOp op = ReduceOp::average;
  double prescale_factor = 1.0;
  double postscale_factor = 1.0;
  ProcessSet process_set = {};
};
// To be tried before allreduce_blocking(): if the same call has been made before, it is replayed in
// a fraction of the time, provided that it is small and all ranks arrive within a few microseconds.
enum class Tried : std::uint8_t { not_repeated, done, begun };
// not_repeated: nothing has happened. begun: `handle` belongs to an operation in progress, as
// returned by allreduce_blocking(). `begin_to_wait` returns the deadline; it is called once before
// this waits for longer than those microseconds or does anything that could wait for another thread
// of the caller's process. Until then a caller may hold what other threads need. Name and shape
// need not outlive that.
[[nodiscard]] Tried try_to_repeat(const PlainAllreduce& call,
                                  const std::function<Time()>& begin_to_wait, Handle& handle);
[[nodiscard]] Handle allgather_blocking(const TensorView& input, const CallOptions& options,
                                        std::optional<Time> deadline);
[[nodiscard]] Handle broadcast_blocking(const TensorView& tensor, int root,
                                        const CallOptions& options, std::optional<Time> deadline);
[[nodiscard]] Handle reduce_scatter_blocking(const TensorView& input,
                                             const ReduceScatterOptions& options,
                                             std::optional<Time> deadline);
[[nodiscard]] Handle alltoall_blocking(const TensorView& input,
                                       const std::vector<std::int64_t>& splits,
                                       const CallOptions& options, std::optional<Time> deadline);
[[nodiscard]] Handle barrier_blocking(const CallOptions& options, std::optional<Time> deadline);

// Ends all process sets except the world and those that only their members know. Every rank calls
// it before it does anything else in a world that it has just entered; none waits for another.
void end_process_sets();
// For a process set that this rank knows, from now on in this world: operations for which ranks are
// missing fail after `seconds` instead of after stall_error (zero: as before), or after `seconds`
// at the earliest. The values given on the set's first rank count.
void set_timeout(ProcessSet set, double seconds);
void extend_timeout(ProcessSet set, double seconds);
// Whether the set was added with these ranks, which may have been renumbered since.
[[nodiscard]] bool was_added_as(ProcessSet set, std::vector<int> ranks);
// Begin add_process_set() and remove_process_set().
[[nodiscard]] Handle begin_adding_process_set(std::vector<int> ranks);
// Waits until the set has been added.
[[nodiscard]] ProcessSet added_process_set(const Handle& handle);
[[nodiscard]] Handle begin_removing_process_set(ProcessSet set);

// A rueda::Allreduce that has begun: `finish` waits until the ranks have agreed on it, which is
// when `agreement` is done, and creates the run. Call it once.
struct BegunAllreduce {
  Handle agreement;
  std::function<OwnedPersistentRun()> finish;
};
[[nodiscard]] BegunAllreduce begin_persistent_allreduce(const TensorView& input, void* output,
                                                        const AllreduceOptions& options);

// --- Worlds of a process besides its own
//
// Each is formed of ranks that its owner names, and ended independently of any other, as
// fault-tolerant training does whenever its members change. One process may be several ranks of
// one. It has one process set, of all its ranks, which identifies it to collectives and messages.
// The timeline, the metrics and persistent operations belong to the process's own world.

// How many may be open at a time.
inline constexpr int world_limit = 64;

// How the ranks meet; connect_rendezvous() documents the fields. One rank alone needs no address.
struct WorldMeeting {
  int rank = 0;
  int size = 1;
  std::string address = {};
  std::string secret = {};
  int listener = -1;
  std::map<std::string, std::string> options = {};  // override those of the environment
};

// Collective over the ranks of the world; returns once all have connected. Throws
// InitializationError if they do not meet, and NotInitializedError in a process that was forked
// from one with worlds.
[[nodiscard]] ProcessSet open_world(const WorldMeeting& meeting);

// Forms a world of the ranks that meet there and makes it the process's own, replacing the present
// one, if any, which is left. Uses: to admit newcomers, which are in no world yet; to drop ranks
// that are to leave (these call shutdown()); or as the first world, of ranks that no launcher
// connects. Collective over the ranks of the new world. Returns each one's rank in the present
// world, -1 for a newcomer. Throws InitializationError if the world cannot be formed, and the
// present one stays; UnsupportedError if the ranks met through MPI.
Recovery enter_world(const WorldMeeting& meeting);
// Whether the present world has ended: a rank is lost, or has left it cleanly. An operation may
// fail because of that before this rank knows; waits up to `timeout` seconds for the reason.
[[nodiscard]] bool is_world_over(double timeout);
// For a thread that waits for all ranks of the present world by other means, as in enter_world():
// throws PeerLostError if one has been lost, for which it would otherwise wait until the timeout.
void throw_if_rank_is_lost();
// The same for a thread that waits for these ranks: throws ShutdownError if the first rank that has
// left the world cleanly is one of them.
void throw_if_rank_has_left(const std::vector<int>& ranks);

// Ends the world. Without a cause this rank leaves: what all have agreed on is finished, the rest
// fails with ShutdownError. With a cause, everything in progress fails at once, on the other ranks
// with a PeerLostError that gives the cause. Does nothing if the world has been closed. Any thread
// may call it while others wait for operations; nothing accesses tensors once these waits return.
void close_world(ProcessSet set, const std::string& cause = {});

// ---

// Whether it is done and nothing accesses the tensors any more, GPUs included.
[[nodiscard]] bool is_finished(const Handle& handle);
// Work enqueued on `stream` from now on sees the results of operations that are done. Waits once
// for those of one batch.
void make_stream_wait(std::span<const Handle> handles, void* stream);
// Like Handle::release_output(), for a result's memory that may have been taken from its handle.
void release_output(const std::shared_ptr<std::byte[]>& memory, void* stream);

}  // namespace rueda
