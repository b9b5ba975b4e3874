// Collectives that combine nothing: every rank publishes where its data is, and each takes what it
// needs. Small data is copied into the slot, so that its owner need not wait until all have read
// it.
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
  // Called once all have arrived; returns what to take. May read the other ranks' numbers, see
  // number_of(). An error, such as being out of memory, ends the collective.
  using Plan = std::function<std::vector<Transfer>(const HostPull&)>;

  // data: what this rank offers; null for nothing. numbers: one per member, for the other ranks'
  // plans, or empty. If the ranks cannot access each other's memory, data above the flat limit must
  // be registered.
  HostPull(HostChannel& channel, const HostPolicy& policy, const std::byte* data, std::size_t bytes,
           std::vector<std::int64_t> numbers, Plan plan, Begin begin = Begin::now);
  ~HostPull() override { quiesce(reach_.place != Place::nothing && reach_.place != Place::slot); }

  using HostCollective::start;

  // The number that `member` published for `index`.
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
  std::size_t taken_ = 0;  // of the next transfer
};

}  // namespace rueda
