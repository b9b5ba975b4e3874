// The data that members of a plan send along when they join one of its rounds, on one host and
// across hosts.
//
// On one host, each member reads the data where the others have written it (EagerBuffers). Across
// hosts, the leader of each host combines its members' data and sends it with the message that the
// host is ready. It is combined on its way and comes back as one result with the decision
// (RoundAgreement). The leader writes that where all members of its host read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "onehost/eager_buffers.h"
#include "onehost/host_group.h"

namespace rueda {

class EagerExchange {
 public:
  // `slots`: of the readiness table. Publishes under keys above `key`.
  EagerExchange(const HostParts& parts, std::uint64_t key, int slots);

  // Bytes that each member may send along with a round.
  static constexpr std::size_t capacity = 16 << 10;

  // Like EagerBuffers' functions of the same names. collect() yields the data of every member of
  // the set, in their order; in a set that spans hosts, only the result.
  void reserve(int slot, std::size_t bytes);
  [[nodiscard]] std::byte* offer(int slot, std::uint64_t round, std::size_t bytes,
                                 std::size_t used) {
    return here_.offer(slot, round, bytes, used);
  }
  void withdraw(int slot, std::uint64_t round) { here_.withdraw(slot, round); }
  [[nodiscard]] bool collect(int slot, std::uint64_t round, std::size_t bytes,
                             std::vector<const std::byte*>& contributions) {
    return (result_ ? *result_ : here_).collect(slot, round, bytes, contributions);
  }

  // --- For the host's leader, before any member here knows that the round is decided

  // Once all members here have joined the round: what each of them has sent along. False: one has
  // sent nothing, or there is no memory for the result.
  [[nodiscard]] bool collect_here(int slot, std::uint64_t round, std::size_t bytes,
                                  std::vector<const std::byte*>& contributions) {
    return result_->is_reserved(slot) && here_.collect(slot, round, bytes, contributions);
  }
  // Empty: there is no result.
  void hand_out(int slot, std::uint64_t round, const std::vector<std::byte>& result);

 private:
  EagerBuffers here_;
  std::optional<EagerBuffers> result_;  // for a set that spans hosts
};

}  // namespace rueda
