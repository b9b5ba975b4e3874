#include "mpi/gpu_reductions.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <climits>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/strings.h"
#include "mpi/communicator.h"
#include "mpi/error.h"

namespace rueda::mpi {

namespace {

constexpr auto doing = "reducing memory of GPUs over MPI";

// MPI does not say which process was lost. The control lane does, and gives this up.
constexpr auto patience = std::chrono::seconds(1);
constexpr auto longest_end = std::chrono::seconds(1);

std::atomic<int> left_threads{0};

std::optional<MPI_Datatype> type_of(DataType dtype) {
  switch (dtype) {
    case DataType::float32: return MPI_FLOAT;
    case DataType::float64: return MPI_DOUBLE;
    case DataType::int8: return MPI_INT8_T;
    case DataType::int16: return MPI_INT16_T;
    case DataType::int32: return MPI_INT32_T;
    case DataType::int64: return MPI_INT64_T;
    case DataType::uint8: return MPI_UINT8_T;
    case DataType::uint16: return MPI_UINT16_T;
    case DataType::uint32: return MPI_UINT32_T;
    case DataType::uint64: return MPI_UINT64_T;
    default: return std::nullopt;
  }
}

std::optional<MPI_Op> operation_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return MPI_SUM;
    case ReduceOp::product: return MPI_PROD;
    case ReduceOp::min: return MPI_MIN;
    case ReduceOp::max: return MPI_MAX;
    default: return std::nullopt;
  }
}

struct Job {
  GpuMemory memory;
  int count = 0;
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Op op = MPI_OP_NULL;
  Ticket ticket;  // not for the thread
  int code = MPI_SUCCESS;
  Time done_at = {};
};

// After an error MPI may still write there.
void keep_for_ever(GpuMemory& memory) {
  static_cast<void>(new GpuMemory(std::move(memory)));
}

}  // namespace

struct GpuReductions::Shared {
  explicit Shared(MPI_Comm its_communicator) : communicator(its_communicator) {}

  void run();

  const MPI_Comm communicator;
  std::thread thread;  // once there is something to do
  bool failed = false;
  Status given_up;
  std::vector<Ticket> tickets;  // not done
  std::vector<Job> ended;       // whose tickets are not done

  std::mutex mutex;  // of all below
  std::condition_variable changed;
  std::deque<Job> jobs;
  std::deque<Job> done;
  bool is_busy = false;
  bool stops = false;
  bool has_ended = false;
};

void GpuReductions::Shared::run() {
  sigset_t all;  // signals are for the application's threads
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return stops || !jobs.empty(); });
    if (stops) break;
    Job job = std::move(jobs.front());
    jobs.pop_front();
    is_busy = true;
    lock.unlock();
    job.memory.with_its_device([&] {
      job.code =
          MPI_Allreduce(MPI_IN_PLACE, job.memory.data, job.count, job.type, job.op, communicator);
    });
    if (job.code != MPI_SUCCESS) keep_for_ever(job.memory);
    job.done_at = Clock::now();
    lock.lock();
    is_busy = false;
    done.push_back(std::move(job));
  }
  has_ended = true;
  changed.notify_all();
}

GpuReductions::GpuReductions(MPI_Comm communicator)
    : shared_(std::make_shared<Shared>(communicator)) {}

GpuReductions::~GpuReductions() {
  give_up(Status(ErrorCode::shutdown, "the MPI transport is closed"));
  if (!shared_->thread.joinable()) return;
  bool has_ended = false;
  {
    std::unique_lock lock(shared_->mutex);
    shared_->stops = true;
    shared_->changed.notify_all();
    has_ended = shared_->changed.wait_for(lock, longest_end, [this] { return shared_->has_ended; });
  }
  if (has_ended) {
    shared_->thread.join();
  } else {
    ++left_threads;
    shared_->thread.detach();
  }
}

Ticket GpuReductions::start(const GpuMemory& memory, std::int64_t count, DataType dtype,
                            ReduceOp op) {
  auto ticket = std::make_shared<Transfer>();
  const auto type = type_of(dtype);
  const auto operation = operation_of(op);
  Status refused = shared_->given_up;
  if (is_finalized()) refused = Status(ErrorCode::transport, str(doing, ": MPI was finalised"));
  if (refused.ok() && (!type || !operation || count > INT_MAX)) {
    refused = Status(ErrorCode::internal,
                     str(doing, ": ", name_of(op), " of ", count, " elements of ", name_of(dtype)));
  }
  if (!refused.ok()) {
    ticket->status = refused;
    ticket->done = true;
    return ticket;
  }
  shared_->tickets.push_back(ticket);
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->jobs.push_back({memory, static_cast<int>(count), *type, *operation, ticket});
  }
  shared_->changed.notify_all();
  if (!shared_->thread.joinable()) {
    shared_->thread = std::thread([shared = shared_] { shared->run(); });
  }
  return ticket;
}

bool GpuReductions::collect() {
  if (shared_->tickets.empty()) return false;
  {
    const std::lock_guard lock(shared_->mutex);
    for (Job& job : std::exchange(shared_->done, {})) shared_->ended.push_back(std::move(job));
  }
  const Time now = Clock::now();
  return std::erase_if(shared_->ended, [&](const Job& job) {
           const Status status = job.code == MPI_SUCCESS ? Status() : failure(job.code, doing);
           shared_->failed = shared_->failed || !status.ok();
           if (status.code() == ErrorCode::peer_lost && now - job.done_at < patience) return false;
           job.ticket->status = status;
           job.ticket->done = true;
           std::erase(shared_->tickets, job.ticket);
           return true;
         }) > 0;
}

void GpuReductions::give_up(const Status& reason) {
  if (!shared_->given_up.ok()) return;
  shared_->given_up = reason;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->failed = shared_->failed || shared_->is_busy || !shared_->jobs.empty();
    shared_->jobs.clear();
  }
  for (const Ticket& ticket : std::exchange(shared_->tickets, {})) {
    ticket->status = reason;
    ticket->done = true;
  }
  shared_->ended.clear();
}

bool GpuReductions::leaves_something() const {
  return shared_->failed || !shared_->tickets.empty();
}

bool has_left_a_thread() {
  return left_threads > 0;
}

}  // namespace rueda::mpi
