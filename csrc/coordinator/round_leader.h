// Represents the members of a process set on one host to those on its other hosts, so that all of
// them replay plans in one order: reports what this host's readiness table shows, and carries out
// on this host what all have decided.
//
// A member here may cancel a plan before its leader has learned of the plan, or learn late that the
// plan was forgotten; other hosts may cancel plans that this one has yet to learn of.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "onehost/readiness_table.h"
#include "plan/round_agreement.h"

namespace rueda {

class RoundLeader {
 public:
  // The data that travels with the message that a host is ready, see RoundAgreement.
  struct Along {
    // For a round that all members here have joined: their data, combined; empty: none.
    std::function<RoundAgreement::Bytes(ReadinessTable::Plan)> collect;
    // For a round that no member here has read of yet; see RoundAgreement.
    std::function<RoundAgreement::Bytes(ReadinessTable::Plan, std::vector<RoundAgreement::Bytes>,
                                        bool is_result)>
        combine;
    // For a round that is decided and that no member here has read of yet.
    std::function<void(ReadinessTable::Plan, const RoundAgreement::Bytes& result)> hand_out;
  };

  // `host`: this rank's, among the `hosts` of the set. `table`: this host's, Decided::by_hosts.
  RoundLeader(const ReadinessTable& table, int host, int hosts, Along along);

  // Call for every plan, in the order of their numbers.
  void learn(ReadinessTable::Plan plan, Urgency urgency = {});
  // All hosts forget the plan. This rank has cancelled it before.
  void forget(ReadinessTable::Plan plan);
  // From now on nothing is replayed, on any host.
  void end() { agreement_.end(); }

  // False if no leader sends such a message.
  [[nodiscard]] bool receive(int host, std::span<const std::byte> message);
  // `load`: what is in flight here. Returns whether anything has been decided since the last step,
  // for which the members must be woken.
  bool step(const Load& load = {});
  [[nodiscard]] std::vector<RoundAgreement::Outgoing> take_outgoing() {
    return agreement_.take_outgoing();
  }

  // Whether this host waits for other hosts to be ready, too.
  [[nodiscard]] bool waits() const { return undecided_ > 0; }
  // Whether other hosts learn of decisions through this rank, so that it may not leave yet. All
  // hosts learn the same plans, so none waits for a decision if there has never been a plan.
  [[nodiscard]] bool is_needed() const {
    return has_learned_ && agreement_.has_children() && !agreement_.has_ended();
  }
  [[nodiscard]] bool is_root() const { return agreement_.is_root(); }

 private:
  struct Known {
    ReadinessTable::Plan place;
    Urgency urgency;
    bool is_ready = false;      // was reported, and is undecided
    bool is_cancelled = false;  // was reported, or all hosts know
    bool is_forgotten = false;  // except for what is undecided
  };
  using Plans = std::unordered_map<std::uint64_t, Known>;  // by number

  void carry_out_decisions();
  void carry_out(const RoundAgreement::Decision& decision);
  void read_reports();
  void cancel(Known& plan);
  void settle(Known& plan);

  ReadinessTable table_;
  RoundAgreement agreement_;
  const Along along_;
  Plans plans_;
  std::set<std::uint64_t> cancelled_early_;  // not learned yet
  bool has_learned_ = false;
  std::uint64_t last_learned_ = 0;
  std::uint64_t read_ = 0;  // reports
  std::size_t undecided_ = 0;
  bool has_decided_ = false;  // since the last step
  bool has_ended_ = false;
};

}  // namespace rueda
