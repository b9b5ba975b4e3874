// One batch on its way: the collective itself and the completion of the handles.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "backend/device_backend.h"
#include "backend/eager.h"
#include "coordinator/flight_recorder.h"
#include "coordinator/metrics.h"
#include "coordinator/submission.h"
#include "coordinator/timeline.h"
#include "onehost/host_group.h"
#include "plan/response.h"

namespace rueda {

// What executions of a process set share; owned by the engine and used by its thread only.
struct ExecutionContext {
  Backend* backend;
  DeviceBackend* devices;
  Metrics* metrics;
  Timeline* timeline;
  FlightRecorder* recorder;
  HostMembers host;                // those of the set, where they share memory
  bool averages_over_all = false;  // also over ranks that have joined
  int set_id = 0;
};

struct BatchMember {
  std::shared_ptr<const Response> response;
  // Nothing where this rank has joined: it contributes the identity.
  std::optional<Submission> submission;
  int persistent = -1;  // persistent operation: its number within the set
};

class Execution {
 public:
  // Starts. All members are allreduces that belong together, or there is one member.
  // `contributions`: what all ranks contribute, if it has come already.
  Execution(const ExecutionContext& context, const Lane& lane, std::vector<BatchMember> members,
            Time now, const Contributions& contributions = {});
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;
  ~Execution();

  // Goes on without blocking; returns whether anything moved. Once the collective is over,
  // completes the handles.
  bool advance(Time now);
  [[nodiscard]] bool done() const { return done_; }
  // Not ok when the transfer failed; the handles are then still open, and the batch is lost on this
  // rank.
  [[nodiscard]] const Status& status() const { return status_; }
  // Completes the handles with an error. No transport may touch the tensors any more.
  void fail(const Status& reason);

  [[nodiscard]] std::int32_t priority() const { return request().priority; }
  // Of the first of its tensors.
  [[nodiscard]] const std::string& name() const { return request().name; }
  [[nodiscard]] bool uses_transport() const { return operation_ && operation_->uses_transport(); }
  [[nodiscard]] bool must_be_polled() const { return operation_ && operation_->must_be_polled(); }
  // What others wait for does not count.
  [[nodiscard]] Time last_moved() const {
    return operation_ && operation_->waits_for_its_turn() ? Clock::now() : last_moved_;
  }
  // "batch of 3 tensors beginning with 'conv1.weight'"
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] std::vector<int> awaited() const;

 private:
  void start(const Contributions& contributions);
  // Of its messages, where other batches share the links.
  void set_priority(std::int32_t priority);
  void await_inputs();
  void start_allreduce(const Contributions& contributions);
  void agree_on_persistent();
  void start_reduce_scatter(const Contributions& contributions);
  void start_allgather(const Contributions& contributions);
  void start_broadcast(const Contributions& contributions);
  void start_alltoall();

  [[nodiscard]] const Request& request() const { return members_.front().response->request; }
  [[nodiscard]] Reduction reduction() const;
  // On a GPU: unless all ranks have brought memory of `bytes`, which fits where they are `alike`,
  // they agree that they all have got what they allocate. Called by all or none.
  void agree_on_results(std::int64_t bytes, bool alike);
  // Memory for the result of member 0, which goes to the application.
  std::byte* allocate_output(Shape shape);
  void complete_handles();
  // Each with its own name in the error.
  void fail_by_name(const Status& reason);
  template <class StatusOf>
  void end_with(const StatusOf& status_of);
  void record_start(const BatchMember& member);
  void record_end();

  ExecutionContext context_;
  Backend* backend_;
  Lane lane_;
  std::vector<BatchMember> members_;
  OperationOutput output_;
  std::shared_ptr<std::byte[]> unwanted_;  // a broadcast's data where this rank has joined
  std::unique_ptr<Operation> operation_;
  Time started_at_;
  Time last_moved_;
  bool has_priority_ = false;  // its tags have one
  bool done_ = false;
  Status status_;
};

}  // namespace rueda
