// How the ranks of a world exchange which sizes: by what was measured when it was formed, and by
// RUEDA_ALGORITHM where that says otherwise. The same on all ranks, but for what the ranks of a
// host do by themselves: the ring where nobody shares memory.
//
// It is chosen once and stays, so any thread may ask.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/options.h"
#include "membership/world.h"
#include "plan/set_hosts.h"

namespace rueda {

class WorldAlgorithms {
 public:
  // Both are referred to.
  WorldAlgorithms(const WorldLayout& layout, const Options& options);
  WorldAlgorithms(const WorldAlgorithms&) = delete;
  WorldAlgorithms& operator=(const WorldAlgorithms&) = delete;

  // ErrorCode::initialization where RUEDA_ALGORITHM makes no sense: nothing else is asked then.
  [[nodiscard]] const Status& status() const { return status_; }

  // Of ranks of this host that share memory.
  [[nodiscard]] const HostPolicy& host_policy() const { return host_policy_; }
  // The same for so many bytes; nothing for the ring.
  [[nodiscard]] std::optional<HostPolicy> host_policy(std::size_t bytes) const {
    return policy_for(on_host_, host_policy_, bytes);
  }
  // Of sets on one host.
  [[nodiscard]] const AlgorithmTable& on_host() const { return on_host_; }
  [[nodiscard]] AlgorithmTable of_world() const;
  // Of all that the world does, as AlgorithmTable::parse() reads it.
  [[nodiscard]] std::string describe() const;

  // Who of a set with these ranks is on which host, and what they exchange how; null where they do
  // nothing in the memory of several hosts. `parts`: as the world's host has them.
  [[nodiscard]] std::unique_ptr<const SetHosts> hosts_of(const HostParts& parts,
                                                         const std::vector<int>& ranks) const;
  // What does all this. It refers to nothing of this.
  [[nodiscard]] std::unique_ptr<Backend> make_backend() const;

 private:
  [[nodiscard]] Status choose();
  [[nodiscard]] HostParts parts_of_world() const;
  [[nodiscard]] AlgorithmTable across(const HostParts& parts) const;
  [[nodiscard]] AlgorithmTable alltoall_across(const HostParts& parts) const;

  const WorldLayout& layout_;
  const Options& options_;
  HostPolicy host_policy_;
  AlgorithmTable on_host_;
  const Status status_;
};

}  // namespace rueda
