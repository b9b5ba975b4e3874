// Internals of NcclCommunicator, for the files that implement it.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/nccl/communicator.h"
#include "backend/nccl/launch_thread.h"
#include "core/strings.h"

namespace rueda {

struct NcclCommunicator::Shared {
  // What the launch thread is doing, if anything.
  enum class Stage { connect, call, leave };
  struct Registration {
    nccl::Window window = nullptr;
    void* buffer = nullptr;
  };

  Shared(const NcclLibrary& its_library, DeviceReference its_device, int its_rank, int its_size)
      : library(its_library), device(std::move(its_device)), rank(its_rank), size(its_size) {}

  [[nodiscard]] std::string with_rank(std::string_view what) const {
    return str(what, " on rank ", rank, " of ", size);
  }

  const NcclLibrary& library;
  const DeviceReference device;
  const int rank;
  const int size;
  std::atomic<Stage> stage{Stage::connect};
  std::atomic<bool> is_given_up{false};
  // --- Owned by the launch thread while it has a job, otherwise by everyone
  nccl::Comm handle = nullptr;
  Status failure;  // of the first call that failed
  std::vector<Registration> registrations;
  LaunchThread launch;  // last, so that it ends before the rest
};

class NcclCommunicator::Api {
 public:
  explicit Api(Shared& shared) : shared_(shared), functions(shared.library.functions()) {}

  [[nodiscard]] nccl::Comm handle() const { return shared_.handle; }
  // The error names the function and this rank.
  [[nodiscard]] Status check(nccl::Result result, std::string_view what) const {
    if (result == nccl::success) return {};
    return shared_.library.check(result, shared_.with_rank(what), shared_.handle);
  }
  // Launches the calls made by `calls` as one.
  template <class Calls>
  [[nodiscard]] Status in_group(const Calls& calls) const {
    if (Status status = check(functions.group_start(), "ncclGroupStart"); !status.ok())
      return status;
    Status failure = calls();
    return failure.because(check(functions.group_end(), "ncclGroupEnd"));
  }

 private:
  Shared& shared_;

 public:
  const nccl::Functions& functions;
};

}  // namespace rueda
