// One world of ranks at work on this rank: what is formed once and stays (which rank is where, both
// planes, how tensors are reduced), and what is in progress. An epoch loses ranks, along with
// everything they take part in; it never gets any back.
//
// It owns the parts that do the work, uses them to carry out commands, and steps them in turn:
// process sets (OpenSets, SetChanges) with messages between two ranks, tables, and the detection of
// lost ranks (Losses).
//
// Used only by the owner of the progress lock, except where marked as being for any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "backend/device_backend.h"
#include "coordinator/active_messages.h"
#include "coordinator/command.h"
#include "coordinator/epoch_services.h"
#include "coordinator/losses.h"
#include "coordinator/message_stalls.h"
#include "coordinator/open_sets.h"
#include "coordinator/point_to_point.h"
#include "coordinator/process_sets.h"
#include "coordinator/progress.h"
#include "coordinator/set_changes.h"
#include "coordinator/table_endpoint.h"
#include "coordinator/whereabouts_answers.h"
#include "coordinator/world_algorithms.h"
#include "membership/world.h"

namespace rueda {

class Epoch final : public Progress::Work {
 public:
  // `sets`: see Runtime::Inheritance.
  Epoch(World world, const EpochServices& services, LossPolicy on_loss,
        std::shared_ptr<ProcessSets> sets = nullptr);
  Epoch(const Epoch&) = delete;
  Epoch& operator=(const Epoch&) = delete;

  // Connects to the neighbours in the world's tree and opens the existing sets. Fails with
  // ErrorCode::initialization.
  Status open();

  // --- For any thread

  [[nodiscard]] const WorldLayout& layout() const { return world_; }
  [[nodiscard]] const WorldAlgorithms& algorithms() const { return algorithms_; }
  [[nodiscard]] std::string_view transport_name() const { return transport_name_; }
  [[nodiscard]] ProcessSets& process_sets() const { return *process_sets_; }
  // Runs in the submitting thread: notes what the streams of GPU tensors must finish first, and
  // takes the memory that adding a process set needs. If there is none, the error travels with the
  // request, so that it fails on all ranks.
  void prepare(std::vector<Submission>& submissions) const;
  // Async-signal-safe.
  void close_after_fork() { world_.control->close_after_fork(); }
  // Readable when there is something to do; -1: that plane has no descriptor.
  struct Descriptors {
    int control = -1;
    int transport = -1;
  };
  [[nodiscard]] Descriptors descriptors() const {
    return {world_.control->wait_fd(), world_.transport->wait_fd()};
  }

  // --- For any thread, once progress has ended

  // What broke the epoch; ok if nothing did.
  [[nodiscard]] const Status& failure() const { return losses_.failure(); }
  [[nodiscard]] const OpenSets& sets() const { return sets_; }

  // --- For the owner of the progress lock

  // Carries out what is in the queue first.
  void carry_out_now(Command command);
  // For calls of the set that need no submission; null if they must be submitted.
  [[nodiscard]] RoundAtOnce* round_at_once(int set_id) const {
    return losses_.has_failed() || stopping_ ? nullptr : sets_.at_once(set_id);
  }

  bool take_commands(Time now) override;
  bool advance(Time now, Readable readable) override;
  [[nodiscard]] bool is_active() const override;
  [[nodiscard]] Deadlines deadlines() const override;
  [[nodiscard]] bool requires_polling() const override;
  [[nodiscard]] OnNetwork awaits_network() const override;
  [[nodiscard]] bool awaits_messages() const override;
  void prepare_to_sleep() override { services_.timeline.flush(); }
  Arming arm() override;
  void disarm() override { world_.transport->disarm(); }
  [[nodiscard]] bool may_stop(Time now) const override;
  void wind_up() override;
  // For example, no memory for a message: the others cannot continue without this rank and must
  // learn why.
  void fail_internal(const std::exception& error) override;

 private:
  void handle_messages();
  void carry_out(Command command, Time now);
  // Whether other ranks rely on what this one is doing.
  [[nodiscard]] bool is_in_flight() const;
  [[nodiscard]] bool uses_transport() const;

  World world_;
  const EpochServices services_;
  const std::string transport_name_;
  const std::shared_ptr<ProcessSets> process_sets_;  // also used by the world that follows
  const WorldAlgorithms algorithms_;
  const std::unique_ptr<Backend> backend_;
  const std::unique_ptr<DeviceBackend> devices_;
  ActiveMessages control_;
  Departures departures_;
  MessageStalls stalls_;
  PointToPoint messages_;
  TableEndpoint tables_;
  WhereaboutsAnswers whereabouts_;
  OpenSets sets_;
  SetChanges changes_;  // of sets_
  Losses losses_;
  bool ends_in_order_ = false;  // and the transport has been told
  std::optional<Time> leaving_until_;
  bool stopping_ = false;  // without a good-bye
};

}  // namespace rueda
