// How the ranks agree on what to execute: a Negotiator for each rank and a RoundAgreement for each
// host. They are the engine's own; here their messages take time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "data_plane.h"
#include "links.h"
#include "plan/load.h"
#include "plan/negotiator.h"
#include "plan/round_agreement.h"
#include "plan/set_hosts.h"
#include "timeline.h"

namespace rueda::simulate {

class ControlPlane {
 public:
  struct Events {
    std::function<void(int rank, const Batch& batch)> execute;
    // A batch whose result has come along with the decision.
    std::function<void(int rank, const Batch& batch)> finish;
    // How many batches a rank has under way.
    std::function<std::size_t(int rank)> running;
  };

  ControlPlane(const Settings& settings, const SetHosts& hosts, Timeline& timeline, Links& links,
               Events events);

  // The application has handed in these tensors on a rank.
  void submit(int rank, std::size_t first, std::size_t last);
  // An event of EventKind::control, report or execute.
  void handle(const Event& event);
  // A batch has ended on a rank: what is held back may go.
  void finished(int rank);

  // Lists of responses, and rounds, that the ranks have agreed on so far.
  [[nodiscard]] std::size_t negotiated() const { return lists_.size(); }
  [[nodiscard]] std::size_t replayed() const { return groups_.size(); }
  [[nodiscard]] std::size_t batches() const { return batches_.size(); }

 private:
  using Batches = std::vector<const Batch*>;

  // What was agreed on in one batch, and is agreed on again by one number: see Replay.
  struct Plan {
    std::uint64_t number = 0;
    std::vector<std::size_t> tensors;
    std::vector<std::size_t> collected;  // by rank: of its next round
    std::vector<int> joined;             // by host: ranks
    std::size_t bytes = 0;
    std::size_t sent_along = 0;  // of these; none where they are too many
  };

  // Rounds that all hosts execute together.
  struct Group {
    Batches exchanged;
    Batches at_hand;  // whose results came with the decision
  };

  [[nodiscard]] bool is_leader(int rank) const { return hosts_.index_of(rank) == 0; }
  [[nodiscard]] Load load(int rank) const;
  void join(int rank, Plan& plan);
  void step(int rank);
  void step_rounds(int rank);
  void send(int from, int to, std::vector<std::byte> message);
  void execute(int rank, const Batches& batches);
  // The batches of the list that a rank is to execute next.
  const Batches& next_list(int rank, const ResponseList& list);
  const Batch& add_batch(std::vector<std::size_t> tensors);
  void learn(const Batch& batch);
  [[nodiscard]] Batches batches_of_plans(const std::vector<std::uint64_t>& plans);
  [[nodiscard]] Group group_of(const std::vector<RoundAgreement::Decision>& together);

  const Settings& settings_;
  const SetHosts& hosts_;
  Timeline& timeline_;
  Links& links_;
  const Events events_;
  const bool replays_;
  std::deque<Negotiator> negotiators_;     // by rank
  std::deque<RoundAgreement> agreements_;  // by host

  std::vector<Request> requests_;                           // by tensor
  std::unordered_map<std::string, std::size_t> tensor_of_;  // by name
  std::deque<Batch> batches_;
  std::deque<Batches> lists_;
  std::vector<std::size_t> lists_of_rank_;  // how many it has had
  std::vector<Response> responses_;         // by tensor
  std::deque<Plan> plans_;
  std::vector<Plan*> plan_of_;  // by tensor; null: it is negotiated
  std::deque<Group> groups_;    // rounds that go together, in the order of all hosts
  std::vector<std::size_t> groups_of_host_;

  std::vector<std::vector<std::byte>> messages_;  // under way, by number
  std::vector<std::size_t> free_messages_;
};

}  // namespace rueda::simulate
