// Ranks as threads, each with a GPU of the CUDA double and a communicator of the NCCL double.
#pragma once

#include <dlfcn.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/nccl/communicator.h"
#include "nccl/nccl_double.h"
#include "unit/cuda/cuda_fixture.h"

namespace rueda::test {

inline NcclDouble& nccl_double() {
  static NcclDouble* found = [] {
    void* library = dlopen(RUEDA_NCCL_DOUBLE, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    return reinterpret_cast<decltype(&rueda_nccl_double)>(dlsym(library, "rueda_nccl_double"))();
  }();
  return *found;
}

class NcclFixture {
 public:
  explicit NcclFixture(const NcclSettings& settings = {}, std::uint64_t delay_seed = 0,
                       bool loads_modules = true)
      : cuda_({.devices = 4, .loads_modules = loads_modules, .delay_seed = delay_seed}) {
    nccl_double().reset(settings);
  }
  ~NcclFixture() {
    CHECK(nccl_double().communicators() == 0);
    CHECK(nccl_double().registrations() == 0);
    for (const std::string& misuse : nccl_double().take_misuse()) FAIL_CHECK(misuse);
    nccl_double().reset();
  }
  NcclFixture(const NcclFixture&) = delete;
  NcclFixture& operator=(const NcclFixture&) = delete;

 private:
  CudaFixture cuda_;
};

// The resources of one rank.
class GpuRank {
 public:
  GpuRank(const nccl::UniqueId& id, int its_rank, int size)
      : rank(its_rank),
        library(*take(load_nccl(double_options()), "load_nccl")),
        device(CudaFixture::device(its_rank)),
        stream(take(CudaStream::create(device), "stream")),
        communicator(take(NcclCommunicator::start(library, device, id, its_rank, size), "start")) {
    expect_ok(communicator->wait_until_ready(soon()), "ready");
  }

  // Waits for NCCL to launch, and then for the stream.
  void finish() const {
    expect_ok(communicator->wait_until_ready(soon()), "launched");
    expect_ok(stream.wait_until_idle(soon()), "done");
    expect_ok(communicator->wait_until_ready(soon()), "without an error");
  }
  void close() const { expect_ok(communicator->close(soon()), "close"); }

  int rank;
  const NcclLibrary& library;
  DeviceReference device;
  CudaStream stream;
  std::unique_ptr<NcclCommunicator> communicator;
};

// Runs `body` on ranks 0 to size - 1, connected.
inline void run_gpu_ranks(int size, const std::function<void(GpuRank&)>& body) {
  const NcclLibrary* library = take(load_nccl(double_options()), "load_nccl");
  const nccl::UniqueId id = take(library->unique_id(), "unique id");
  run_ranks(size, [&](int rank) {
    GpuRank mine(id, rank, size);
    body(mine);
  });
}

}  // namespace rueda::test
