// Collectives in which nothing is combined: every rank says where its data lies, and everybody
// takes what it needs from there. Small data is copied into the slot, so that its owner need not
// wait until all have taken it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "onehost/host_collective.h"
#include "onehost/host_reach.h"

namespace rueda {

class HostPull final : public HostCollective {
 public:
  struct Transfer {
    int member = 0;
    std::size_t offset = 0;  // into the member's data
    std::byte* target = nullptr;
    std::size_t bytes = 0;
  };
  // Says what to take, once all have arrived. May read the numbers of others, see numbers_of(). An
  // error, as from a lack of memory, ends the collective.
  using Plan = std::function<std::vector<Transfer>(const HostPull&)>;

  // data: what this rank offers; nothing where it is null. numbers: one per member, for the plans
  // of the others, or none. Where the ranks cannot reach into each other's memory, data above the
  // flat limit must be registered.
  HostPull(HostChannel& channel, const HostPolicy& policy, const std::byte* data, std::size_t bytes,
           std::vector<std::int64_t> numbers, Plan plan, Begin begin = Begin::now);
  ~HostPull() override { quiesce(reach_.place != Place::nothing && reach_.place != Place::slot); }

  using HostCollective::start;

  // numbers[this rank] of `member`.
  [[nodiscard]] std::int64_t number_of(int member, int index) const;
  [[nodiscard]] int size() const { return channel_.size(); }
  [[nodiscard]] int rank() const { return channel_.rank(); }

 private:
  void prepare() override;
  Work work() override;
  [[nodiscard]] bool shares_tensors() const override;
  [[nodiscard]] Exposure exposure_of(int member) const;
  [[nodiscard]] Status take(const Transfer& transfer, std::size_t done, std::size_t bytes);

  const std::byte* data_;
  const std::size_t bytes_;
  const std::vector<std::int64_t> numbers_;
  const Plan plan_;
  Reach reach_;
  bool started_ = false;
  std::vector<Transfer> transfers_;
  std::size_t next_ = 0;
  std::size_t taken_ = 0;  // of the next one
};

}  // namespace rueda
