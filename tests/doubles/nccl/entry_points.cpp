// NCCL's functions under the names by which they are looked up: but those for memory.
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "nccl_state.h"

using namespace rueda::nccl;
using rueda::test::bytes_of;
using rueda::test::Collective;
using rueda::test::Communicator;
using rueda::test::CommunicatorReference;
using rueda::test::InCall;
using rueda::test::Meeting;
using rueda::test::NcclCall;
using rueda::test::NcclState;
using rueda::test::state;
using rueda::test::Step;

namespace {

constexpr auto wait_timeout = std::chrono::seconds(60);

// False after a minute: nobody makes it true any more.
template <class Condition>
bool wait_for(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + wait_timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

// The memory behind [address, address + bytes), or null and a failed communicator.
std::byte* reach(const CommunicatorReference& communicator, const void* address,
                 std::size_t bytes) {
  static std::byte nothing{};
  if (bytes == 0) return &nothing;
  std::byte* memory = rueda_cuda_double()->reach(address, bytes);
  if (memory == nullptr) {
    state().refuse("a buffer that is not memory of a device, or too short");
    state().break_one(communicator, unhandled_cuda_error, "invalid buffer");
  }
  return memory;
}

// What NCCL reads and writes is in use from when its stream comes there until all is done.
class InUse {
 public:
  explicit InUse(const void* memory) : memory_(memory) {
    rueda_cuda_double()->change_uses(memory_, 1);
  }
  ~InUse() { rueda_cuda_double()->change_uses(memory_, -1); }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  const void* memory_;
};

// A function that is called without a communicator, or with one that may be in any state.
NcclCall call_of(const std::string& function, const CommunicatorReference& communicator,
                 std::uint64_t count = 0, int dtype = 0, int op = 0, int peer = 0) {
  return {function,
          communicator ? communicator->rank : 0,
          count,
          dtype,
          op,
          peer,
          NcclState::group_depth > 0};
}

Result refused_while_given_up(const CommunicatorReference& communicator) {
  return communicator->given_up ? state().refuse("an operation of a communicator that was aborted")
                                : success;
}

void finish(const CommunicatorReference& communicator, const std::string& problem) {
  if (problem.empty() || communicator->given_up) return;
  state().break_one(communicator,
                    problem.find("disagree") != std::string::npos ? invalid_usage : remote_error,
                    problem);
}

// What NCCL does for one rank: a copy, or nothing in place.
Result copy_alone(const CommunicatorReference& communicator, const void* input, void* output,
                  std::size_t bytes, rueda::StreamHandle stream) {
  if (input == output || bytes == 0) return success;
  rueda_cuda_double()->enqueue(stream, [=] {
    const std::byte* const from = reach(communicator, input, bytes);
    std::byte* const to = reach(communicator, output, bytes);
    if (from == nullptr || to == nullptr) return;
    const InUse reads(input);
    const InUse writes(output);
    std::memmove(to, from, bytes);
  });
  return success;
}

// `input_parts` and `output_parts`: of `count` elements each.
Result collective(const std::string& function, const void* input, void* output, std::size_t count,
                  DataTypeNumber dtype, int op, int root, Comm handle, rueda::StreamHandle stream,
                  std::size_t input_parts, std::size_t output_parts) {
  const CommunicatorReference communicator = state().find(handle);
  if (const Result refused =
          state().begin(call_of(function, communicator, count, dtype, op, root), communicator);
      refused != success) {
    return refused;
  }
  if (const Result refused = refused_while_given_up(communicator); refused != success)
    return refused;
  if (root < 0 || root >= communicator->meeting->size()) return invalid_argument;
  if (state().blocks(*communicator)) return system_error;
  if (op < sum || op > min)
    return state().refuse("an average or another operation that keeps NCCL from its fast kernels");
  Collective part{function, nullptr, nullptr, count, dtype, op, root};
  const std::size_t bytes = count * bytes_of(dtype);
  if (communicator->meeting->size() == 1)
    return copy_alone(communicator, input, output, bytes, stream);
  return state().launch(
      {communicator, stream, false, true, [=](std::uint64_t number) mutable {
         part.input = reach(communicator, input, bytes * input_parts);
         part.output =
             output_parts == 0 ? nullptr : reach(communicator, output, bytes * output_parts);
         if (part.input == nullptr || (output_parts > 0 && part.output == nullptr)) return;
         const InUse reads(input);
         const InUse writes(output);
         const auto longest = rueda::seconds(state().settings().wait_timeout);
         finish(communicator,
                communicator->meeting->take_part(number, communicator->rank, part, longest,
                                                 [&] { return communicator->given_up.load(); }));
       }});
}

Result message(const std::string& function, std::byte* memory, std::size_t count,
               DataTypeNumber dtype, int peer, Comm handle, rueda::StreamHandle stream,
               bool sends) {
  const CommunicatorReference communicator = state().find(handle);
  if (const Result refused =
          state().begin(call_of(function, communicator, count, dtype, 0, peer), communicator);
      refused != success) {
    return refused;
  }
  if (const Result refused = refused_while_given_up(communicator); refused != success)
    return refused;
  if (peer < 0 || peer >= communicator->meeting->size()) return invalid_argument;
  const std::size_t bytes = count * bytes_of(dtype);
  return state().launch(
      {communicator, stream, sends, false, [=](std::uint64_t) {
         std::byte* reached = reach(communicator, memory, bytes);
         if (reached == nullptr) return;
         const InUse used(memory);
         Meeting& meeting = *communicator->meeting;
         if (sends) return meeting.send(communicator->rank, peer, {reached, reached + bytes});
         const auto longest = rueda::seconds(state().settings().wait_timeout);
         finish(communicator, meeting.receive(peer, communicator->rank, reached, bytes, longest,
                                              [&] { return communicator->given_up.load(); }));
       }});
}

}  // namespace

extern "C" {

Result ncclGetVersion(int* version) {
  *version = state().settings().version;
  return success;
}
Result ncclGetUniqueId(UniqueId* id) {
  static std::atomic<std::uint64_t> number = 0;
  std::memset(id, 0, sizeof(*id));
  const std::string text = "double " + std::to_string(++number);
  std::memcpy(id->internal, text.data(), text.size());
  return success;
}
const char* ncclGetErrorString(Result result) {
  switch (result) {
    case success: return "no error";
    case unhandled_cuda_error: return "unhandled cuda error";
    case system_error: return "unhandled system error";
    case internal_error: return "internal error";
    case invalid_argument: return "invalid argument";
    case invalid_usage: return "invalid usage";
    case remote_error: return "remote process exited or there was a network error";
    case in_progress: return "NCCL operation in progress";
  }
  return "unknown result code";
}
const char* ncclGetLastError(Comm handle) {
  const CommunicatorReference communicator = state().find(handle);
  if (communicator) {
    const std::lock_guard lock(communicator->mutex);
    if (communicator->error != success) NcclState::last_error = communicator->error_text;
  }
  return NcclState::last_error.c_str();
}

Result ncclCommInitRankConfig(Comm* handle, int size, UniqueId id, int rank,
                              rueda::nccl::Config* config) {
  auto communicator = std::make_shared<Communicator>();
  communicator->rank = rank;
  communicator->device = rueda_cuda_double()->current_device();
  communicator->meeting = std::make_shared<Meeting>(0);
  if (config == nullptr || config->magic != 0xcafebeef) return invalid_argument;
  communicator->blocking = config->blocking != 0;
  if (const Result refused = state().begin(
          call_of("ncclCommInitRankConfig", communicator, 0, 0, communicator->blocking ? 1 : 0),
          communicator);
      refused != success) {
    return refused;
  }
  communicator->meeting = state().meeting(id, size);
  *handle = state().add(communicator);  // before the others have come, as NCCL does
  return state().work_for(communicator, [communicator] { return state().connect(*communicator); });
}
Result ncclCommGetAsyncError(Comm handle, Result* result) {
  const CommunicatorReference communicator = state().find(handle);
  if (!communicator) return state().refuse("ncclCommGetAsyncError of no communicator");
  const std::lock_guard lock(communicator->mutex);
  const bool is_well = communicator->error == success;
  *result = is_well && communicator->in_progress ? in_progress : communicator->error;
  return success;
}
Result ncclCommFinalize(Comm handle) {
  const CommunicatorReference communicator = state().find(handle);
  if (const Result refused = state().begin(call_of("ncclCommFinalize", communicator), communicator);
      refused != success) {
    return refused;
  }
  return state().work_for(communicator, [communicator] {
    const InCall in_call(*communicator);
    communicator->finalizing = true;
    const bool ends =
        wait_for([&] { return communicator->running == 0 && communicator->captured == 0; });
    communicator->finalizing = false;
    return ends ? success
                : state().refuse("a graph or an operation that does not end was waited for");
  });
}
Result ncclCommDestroy(Comm handle) {
  const CommunicatorReference communicator = state().find(handle);
  if (const Result refused = state().begin(call_of("ncclCommDestroy", communicator), communicator);
      refused != success) {
    return refused;
  }
  if (communicator->running > 0 || communicator->captured > 0)
    return state().refuse("destroyed while operations are running, or graphs hold them");
  state().remove(handle);
  const std::lock_guard lock(communicator->mutex);
  return communicator->registrations.empty()
             ? success
             : state().refuse("destroyed while memory is registered");
}
Result ncclCommAbort(Comm handle) {
  const CommunicatorReference communicator = state().find(handle);
  if (!communicator) return state().refuse("ncclCommAbort of no communicator");
  if (communicator->connecting || communicator->finalizing)
    return state().refuse(
        "aborted while another thread connects or finalizes it, which frees it under that thread");
  communicator->given_up = true;
  // As NCCL does, and for ever. A test shall fail.
  if (!wait_for([&] {
        return communicator->captured == 0 && communicator->in_call == 0 &&
               !communicator->in_progress;
      }))
    return state().refuse(
        "a graph that nobody destroys, or a call that does not return, was waited for");
  state().remove(handle);
  return success;
}

Result ncclGroupStart() {
  ++NcclState::group_depth;
  return success;
}
Result ncclGroupEnd() {
  if (NcclState::group_depth == 0) return state().refuse("a group that was not begun");
  if (--NcclState::group_depth > 0) return success;
  return state().launch_all(std::exchange(NcclState::group, {}));
}

Result ncclAllReduce(const void* input, void* output, std::size_t count, DataTypeNumber dtype,
                     RedOp op, Comm comm, rueda::StreamHandle stream) {
  return collective("ncclAllReduce", input, output, count, dtype, op, 0, comm, stream, 1, 1);
}
Result ncclReduce(const void* input, void* output, std::size_t count, DataTypeNumber dtype,
                  RedOp op, int root, Comm comm, rueda::StreamHandle stream) {
  const CommunicatorReference communicator = state().find(comm);
  const bool writes = communicator && communicator->rank == root;
  return collective("ncclReduce", input, output, count, dtype, op, root, comm, stream, 1,
                    writes ? 1 : 0);
}
Result ncclReduceScatter(const void* input, void* output, std::size_t count, DataTypeNumber dtype,
                         RedOp op, Comm comm, rueda::StreamHandle stream) {
  const CommunicatorReference communicator = state().find(comm);
  const auto size = communicator ? static_cast<std::size_t>(communicator->meeting->size()) : 1;
  return collective("ncclReduceScatter", input, output, count, dtype, op, 0, comm, stream, size, 1);
}
Result ncclAllGather(const void* input, void* output, std::size_t count, DataTypeNumber dtype,
                     Comm comm, rueda::StreamHandle stream) {
  const CommunicatorReference communicator = state().find(comm);
  const auto size = communicator ? static_cast<std::size_t>(communicator->meeting->size()) : 1;
  return collective("ncclAllGather", input, output, count, dtype, sum, 0, comm, stream, 1, size);
}
Result ncclBroadcast(const void* input, void* output, std::size_t count, DataTypeNumber dtype,
                     int root, Comm comm, rueda::StreamHandle stream) {
  return collective("ncclBroadcast", input, output, count, dtype, sum, root, comm, stream, 1, 1);
}
Result ncclSend(const void* memory, std::size_t count, DataTypeNumber dtype, int peer, Comm comm,
                rueda::StreamHandle stream) {
  return message("ncclSend", static_cast<std::byte*>(const_cast<void*>(memory)), count, dtype, peer,
                 comm, stream, true);
}
Result ncclRecv(void* memory, std::size_t count, DataTypeNumber dtype, int peer, Comm comm,
                rueda::StreamHandle stream) {
  return message("ncclRecv", static_cast<std::byte*>(memory), count, dtype, peer, comm, stream,
                 false);
}

}  // extern "C"
