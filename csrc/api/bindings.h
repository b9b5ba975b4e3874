// What bindings of other languages need beyond the public headers: to wait in parts, so that they
// can look after something else in between, as Python does after signals; and facts about the
// build. csrc/bindings/ includes this, csrc/core/ and the public headers, and nothing else.
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
#include "rueda/rueda.h"

namespace rueda {

// The address under which ranks of other hosts reach this one; `interface`: Options::interface.
// Throws InitializationError where that is neither an interface nor an address of this host.
[[nodiscard]] std::string own_address(const std::string& interface);

// Waits until the operation is done, the deadline has passed or a signal handler has run in this
// thread. The operation's error is left to Handle::wait().
void wait_once(const Handle& handle, Time deadline);

// As allreduce() and so on, for a caller that waits at once: it does the work itself, and no
// other thread wakes. Return when the operation is done, when the deadline has passed or when a
// signal handler has run; in the last two cases it goes on, and the handle is waited for as any
// other.
[[nodiscard]] Handle allreduce_blocking(const TensorView& input, void* output,
                                        const AllreduceOptions& options,
                                        std::optional<Time> deadline);
// An allreduce of one tensor of the host, of which all else is as it usually is. Refers to what the
// caller has.
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
// To be tried before allreduce_blocking(): whether the same has been done before, in which case it
// is done again in a fraction of the time, as long as it is small and all ranks come within a few
// microseconds.
enum class Tried : std::uint8_t { not_repeated, done, begun };
// not_repeated: nothing has happened. begun: `handle` is that of an operation that goes on, as
// allreduce_blocking() returns it. `begin_to_wait` is called once before this waits for longer than
// those microseconds or does anything that could wait for another thread of the caller's, and says
// the deadline; until then a caller may hold what his other threads need. Name and shape need not
// outlive that.
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

// Ends all process sets but the world and those that only their members know. Every rank calls it,
// before it does anything else in a world that it has just entered; none waits for another.
void end_process_sets();
// For a process set that this rank knows, from now on in this world: where stall_error makes
// operations fail, they do so after `seconds` at the earliest. What counts is what the set's first
// rank asks for.
void extend_patience(ProcessSet set, double seconds);
// Whether the set was added with these ranks, which may have got other numbers since.
[[nodiscard]] bool was_added_as(ProcessSet set, std::vector<int> ranks);
// add_process_set() and remove_process_set() begun.
[[nodiscard]] Handle begin_adding_process_set(std::vector<int> ranks);
// Waits until it has been added.
[[nodiscard]] ProcessSet added_process_set(const Handle& handle);
[[nodiscard]] Handle begin_removing_process_set(ProcessSet set);

// rueda::Allreduce begun: `finish` waits until the ranks have agreed on it, which is when
// `agreement` is done, and makes what runs. It is called once.
struct BegunAllreduce {
  Handle agreement;
  std::function<OwnedPersistentRun()> finish;
};
[[nodiscard]] BegunAllreduce begin_persistent_allreduce(const TensorView& input, void* output,
                                                        const AllreduceOptions& options);

// --- Worlds of a process beside its own
//
// Each is formed of ranks that its owner names, and ended without regard to any other, as
// fault-tolerant training does whenever its members change. One process may be several ranks of
// one. It has one process set, of all its ranks, by which collectives and messages find it. The
// timeline, the metrics and persistent operations are those of the process's own world.

// So many may be open at a time.
inline constexpr int world_limit = 64;

// How the ranks meet: connect_rendezvous() says what each field is. One rank alone needs no
// address.
struct WorldMeeting {
  int rank = 0;
  int size = 1;
  std::string address = {};
  std::string secret = {};
  int listener = -1;
  std::map<std::string, std::string> options = {};  // before those of the environment
};

// Collective over the ranks of the world; returns once all have connected. Throws
// InitializationError where they do not meet, and NotInitializedError in a process that was forked
// from one with worlds.
[[nodiscard]] ProcessSet open_world(const WorldMeeting& meeting);

// Forms a world of the ranks that meet there and makes it the process's own in the place of the
// present one, if any, which is left: to take in newcomers, who are in none yet, and to do without
// ranks that are to leave (these call shutdown()); or as the first one, of ranks that no launcher
// tells of each other. Collective over the ranks of the new world. Tells each one's rank in the
// present world, -1 for a newcomer. Throws InitializationError where the world
// cannot be formed, and the present one stays; UnsupportedError where the ranks met through MPI.
Recovery enter_world(const WorldMeeting& meeting);
// Whether the present world is over for its ranks: one is lost, or has left it in good order. An
// operation may have failed for that before it is known here, which is waited for so many seconds.
[[nodiscard]] bool is_world_over(double patience);
// For whoever waits for all ranks of the present world elsewhere than in it, as in enter_world():
// throws PeerLostError where one was lost meanwhile, which would be waited for until time is up.
void throw_if_rank_is_lost();
// The same for whoever waits for these ranks of it: throws ShutdownError where the first rank that
// has left the world in good order is one of them.
void throw_if_rank_has_left(const std::vector<int>& ranks);

// Ends the world. Without a cause this rank leaves: what all have agreed on is finished, the rest
// fails with ShutdownError. With one, what is under way fails at once, on the other ranks with a
// PeerLostError that tells the cause. Does nothing where it has been closed. Any thread may call it
// while others wait for operations; nothing touches their tensors once these have returned.
void close_world(ProcessSet set, const std::string& cause = {});

// ---

// Done, and nothing touches the tensors any more, GPUs included.
[[nodiscard]] bool is_finished(const Handle& handle);
// What `stream` enqueues from now on finds the results of operations that are done. Those of one
// batch are waited for once.
void make_stream_wait(std::span<const Handle> handles, void* stream);
// As Handle::release_output(), for memory of a result that its handle may have left.
void release_output(const std::shared_ptr<std::byte[]>& memory, void* stream);

}  // namespace rueda
