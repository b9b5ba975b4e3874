// All-to-all for members on several hosts, at least one of which has several members.
//
// For each rank of another host, one member gathers the rows of all members of this host, in its
// memory, and sends them as one message. Which member does so depends on the rank, so that the
// members share the work. The message begins with each member's row count for that rank. With H
// hosts of L members, a rank sends H-1 messages of each kind instead of (H-1)L.
//
// Gathering costs a copy. For each other host, the sending host decides by the total that its
// members have for that host, and announces the decision with the row counts: if it is large, each
// member sends its rows itself. The same holds for rows between members of a host.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/buffer_pool.h"
#include "onehost/host_pull.h"
#include "plan/set_hosts.h"

namespace rueda {

class GatheredAlltoall final : public Operation {
 public:
  // A channel has no room for the row counts of larger sets.
  static constexpr std::size_t max_members = ChannelMemory::table_entries - 1;

  // `policy`: from policy_of_stages(). `pool`: of memory that other members on this host can reach.
  GatheredAlltoall(const Lane& lane, const HostPolicy& policy, BufferPool& pool,
                   AlltoallInput input, AllocateRows allocate);
  ~GatheredAlltoall() override;

  bool advance() override;
  [[nodiscard]] bool done() const override { return done_; }
  [[nodiscard]] const Status& status() const override { return status_; }
  [[nodiscard]] std::vector<int> awaited() const override;

 private:
  // The rows of this host's members for one rank, contiguous, in member order.
  struct Bundle {
    int to = 0;  // rank within the set
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
  };

  [[nodiscard]] std::size_t bytes(std::int64_t rows) const {
    return static_cast<std::size_t>(rows) * input_.row_bytes;
  }
  // Ranks of another host to which this rank sends on behalf of all members here.
  [[nodiscard]] std::vector<int> carried(int host) const;

  // --- Within the host
  void gather(const HostPolicy& policy);
  [[nodiscard]] std::vector<HostPull::Transfer> what_to_take(const HostPull& pull);
  void read_rows(const HostPull& pull);
  [[nodiscard]] bool should_gather(int host) const;
  void bundle_own_rows();

  // --- Between ranks
  void tell_counts();
  void exchange_rows();
  void take_rows_of_host(std::byte* output, const std::vector<std::size_t>& at);
  void receive_rows(int host, std::byte* output, const std::vector<std::size_t>& at);
  void send_rows(int host);
  void send_bundle(const Bundle& bundle);
  void send(int to, ConstBytes bytes);
  void receive(int from, std::span<const MutableBytes> spans);
  bool all_done(const std::vector<Ticket>& tickets);

  const Lane lane_;
  const SetHosts& hosts_;
  BufferPool& pool_;
  const AlltoallInput input_;
  const AllocateRows allocate_;

  std::unique_ptr<Operation> pull_;  // while members gather
  // Row counts of each member here for each rank of the set, and their prefix sums.
  std::vector<std::vector<std::int64_t>> rows_;
  std::vector<std::vector<std::int64_t>> rows_before_;
  bool all_offer_ = true;      // whether every member's rows can be read
  std::vector<char> gathers_;  // by host: whether this host gathers for it
  PooledBuffer gathered_;
  std::vector<Bundle> bundles_;                  // carried by this rank
  std::vector<const std::byte*> taken_;          // from each member here, for this rank
  std::vector<std::vector<std::int64_t>> told_;  // sent to each of those ranks, and from each host:
  std::vector<std::vector<std::int64_t>> counts_;  // whether it gathers, its members' row counts
  std::vector<std::int64_t> received_rows_;        // from each rank of the set
  std::vector<Ticket> awaited_counts_;
  std::vector<Ticket> receives_;
  std::vector<Ticket> sends_;
  bool rows_known_ = false;
  bool done_ = false;
  Status status_;
};

}  // namespace rueda
