// Speaks for the members of a process set on one host with those on its other hosts, so that what
// was agreed on before is done again in one order on all of them: tells them what the readiness
// table of this host reports, and carries out there what all have decided.
//
// A member here may cancel a plan before its leader has learned of the plan, or may hear late that
// the plan was forgotten; other hosts may cancel plans that this one has yet to learn of.
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
  // What travels along with the news that a host is ready, see RoundAgreement.
  struct Along {
    // Of a round that all members here have joined: what they send, combined; empty: nothing.
    std::function<RoundAgreement::Bytes(ReadinessTable::Plan)> collect;
    // Of a round that no member here has read of yet, as RoundAgreement has it.
    std::function<RoundAgreement::Bytes(ReadinessTable::Plan, std::vector<RoundAgreement::Bytes>,
                                        bool is_result)>
        combine;
    // Of a round that goes, and that no member here has read of yet.
    std::function<void(ReadinessTable::Plan, const RoundAgreement::Bytes& result)> hand_out;
  };

  // `host`: of this rank, among the `hosts` of the set. `table`: of this host, Decided::by_hosts.
  RoundLeader(const ReadinessTable& table, int host, int hosts, Along along);

  // Plans, in the order of their numbers.
  void learn(ReadinessTable::Plan plan, Urgency urgency = {});
  // All hosts forget it. This rank has cancelled it before.
  void forget(ReadinessTable::Plan plan);
  // Nothing is done again from now on, on any host.
  void end() { agreement_.end(); }

  // False for what no leader sends.
  [[nodiscard]] bool receive(int host, std::span<const std::byte> message);
  // `load`: of what is under way here. Returns whether anything has been decided since the last
  // step, which the members are to be woken for.
  bool step(const Load& load = {});
  [[nodiscard]] std::vector<RoundAgreement::Outgoing> take_outgoing() {
    return agreement_.take_outgoing();
  }

  // Whether this host waits for others to be ready, too.
  [[nodiscard]] bool waits() const { return undecided_ > 0; }
  // Whether others hear through this rank what is decided, and it may not go yet.
  [[nodiscard]] bool is_needed() const {
    return agreement_.has_children() && !agreement_.has_ended();
  }
  [[nodiscard]] bool is_root() const { return agreement_.is_root(); }

 private:
  struct Known {
    ReadinessTable::Plan place;
    Urgency urgency;
    bool is_ready = false;      // as all hosts know, and that is not decided
    bool is_cancelled = false;  // all hosts know, or have been told
    bool is_forgotten = false;  // but for what is to be decided
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
  std::uint64_t last_learned_ = 0;
  std::uint64_t read_ = 0;  // reports
  std::size_t undecided_ = 0;
  bool has_decided_ = false;  // since the last step
  bool has_ended_ = false;
};

}  // namespace rueda
