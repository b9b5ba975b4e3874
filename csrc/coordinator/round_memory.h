// What the members of a process set on one host share to replay plans: the readiness table, where
// they join rounds, and the data they send along. Also how they wake each other.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/eager_exchange.h"
#include "onehost/host_group.h"
#include "onehost/readiness_table.h"

namespace rueda {

class RoundMemory {
 public:
  // The first member on each host creates the readiness table, before it negotiates anything.
  // `plans`: number of plans kept; 0: none, and there is no table.
  RoundMemory(HostParts parts, int set_id, int plans);
  ~RoundMemory();
  RoundMemory(const RoundMemory&) = delete;
  RoundMemory& operator=(const RoundMemory&) = delete;

  // This rank will not open the set, whose members keep plans: they need not wait for it before the
  // table's memory is reused.
  static void forgo(const HostMembers& host, int set_id);

  [[nodiscard]] const HostParts& parts() const { return parts_; }
  [[nodiscard]] bool spans_hosts() const { return parts_.leaders.size() > 1; }
  // Whether this rank is the first member on its host.
  [[nodiscard]] bool leads() const { return parts_.rank == 0; }
  [[nodiscard]] bool may_have_table() const { return plans_ > 0; }

  // Once something has been agreed on, the first member has created the table or never will, and
  // all members find the same. Returns whether the table has become available in this call.
  bool open();
  // Opens a table that this rank shares with nobody.
  void open_alone();
  [[nodiscard]] bool is_open() const { return readiness_.has_value(); }
  [[nodiscard]] int slots() const;

  // Only while it is open.
  [[nodiscard]] ReadinessTable& readiness() { return *readiness_; }
  [[nodiscard]] const ReadinessTable& readiness() const { return *readiness_; }
  [[nodiscard]] EagerExchange& eager() { return *eager_; }

  // Number of entries of the table's log that this rank has read.
  [[nodiscard]] std::uint64_t log_position() const { return log_position_; }
  void move_in_log(std::uint64_t position) { log_position_ = position; }

  // Wake members of this host.
  void wake_leader() const { wake_member(0); }
  void wake_others() const;

 private:
  void make_table();
  void use(std::byte* memory);
  void wake_member(int member) const;

  const HostParts parts_;
  const std::uint64_t key_;
  const int plans_;
  bool searched_ = false;
  std::optional<ReadinessTable> readiness_;
  std::optional<EagerExchange> eager_;
  struct alignas(64) CacheLine {
    std::array<std::byte, 64> bytes{};
  };
  std::vector<CacheLine> own_table_;
  std::uint64_t log_position_ = 0;
};

}  // namespace rueda
