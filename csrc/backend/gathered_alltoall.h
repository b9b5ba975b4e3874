// All-to-all of members on several hosts, of which some have more than one.
//
// What the members of a host have for one rank of another is gathered, in the host's memory, by one
// of them, which sends it as one message; who that is follows from the rank, so that the members
// share the work. It begins with how many rows each of them has for that rank. So a rank of H hosts
// with L members each sends H-1 messages of each kind instead of (H-1)L.
//
// Gathering costs a copy. The sending host decides for each other host, by what all its members
// have for it, and says so with the numbers of rows: where that is much, each member sends what it
// has by itself. The same holds for what the members of a host have for each other.
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
  // Sets of more members have no room for their numbers in a channel.
  static constexpr std::size_t max_members = ChannelMemory::table_entries - 1;

  // `policy`: of stages. `pool`: of memory that others on this host reach.
  GatheredAlltoall(const Lane& lane, const HostPolicy& policy, BufferPool& pool,
                   AlltoallInput input, AllocateRows allocate);
  ~GatheredAlltoall() override;

  bool advance() override;
  [[nodiscard]] bool done() const override { return done_; }
  [[nodiscard]] const Status& status() const override { return status_; }
  [[nodiscard]] std::vector<int> awaited() const override;

 private:
  // What this host has for one rank, side by side in the order of its members.
  struct Bundle {
    int to = 0;  // rank within the set
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
  };

  [[nodiscard]] std::size_t bytes(std::int64_t rows) const {
    return static_cast<std::size_t>(rows) * input_.row_bytes;
  }
  // The ranks of another host that this one sends to for all members here.
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
  // Of each member here, for each rank of the set, with what they add up to before it.
  std::vector<std::vector<std::int64_t>> rows_;
  std::vector<std::vector<std::int64_t>> rows_before_;
  bool all_offer_ = true;      // whether each member's rows can be taken
  std::vector<char> gathers_;  // for each host: whether this one does
  PooledBuffer gathered_;
  std::vector<Bundle> bundles_;                    // of what this rank carries
  std::vector<const std::byte*> taken_;            // from each member here, for this rank
  std::vector<std::vector<std::int64_t>> told_;    // to each of those ranks, and by each host:
  std::vector<std::vector<std::int64_t>> counts_;  // whether it has gathered, rows of its members
  std::vector<std::int64_t> received_rows_;        // from each rank of the set
  std::vector<Ticket> awaited_counts_;
  std::vector<Ticket> receives_;
  std::vector<Ticket> sends_;
  bool rows_known_ = false;
  bool done_ = false;
  Status status_;
};

}  // namespace rueda
