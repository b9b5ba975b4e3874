// Which algorithm the ranks of a world use for which size: from measurements made when the world
// was formed, unless RUEDA_ALGORITHM says otherwise. The same on all ranks, except for what the
// ranks of a host do among themselves: the ring if nobody shares memory.
//
// Chosen once and never changed, so any thread may ask.
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
  // Keeps references to both.
  WorldAlgorithms(const WorldLayout& layout, const Options& options);
  WorldAlgorithms(const WorldAlgorithms&) = delete;
  WorldAlgorithms& operator=(const WorldAlgorithms&) = delete;

  // ErrorCode::initialization if RUEDA_ALGORITHM is invalid: then nothing else may be used.
  [[nodiscard]] const Status& status() const { return status_; }

  // For ranks of this host that share memory.
  [[nodiscard]] const HostPolicy& host_policy() const { return host_policy_; }
  // The same for this many bytes; nothing for the ring.
  [[nodiscard]] std::optional<HostPolicy> host_policy(std::size_t bytes) const {
    return policy_for(on_host_, host_policy_, bytes);
  }
  // For sets on one host.
  [[nodiscard]] const AlgorithmTable& on_host() const { return on_host_; }
  [[nodiscard]] AlgorithmTable of_world() const;
  // Everything that the world uses, in the format of AlgorithmTable::parse().
  [[nodiscard]] std::string describe() const;

  // Which ranks of this set are on which host, and which algorithms they use; null if they do
  // nothing in the memory of several hosts. `parts`: relative to the world's host.
  [[nodiscard]] std::unique_ptr<const SetHosts> hosts_of(const HostParts& parts,
                                                         const std::vector<int>& ranks) const;
  // Creates the backend that carries all this out. It keeps no references to this object.
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
