// Stub of the device backend for builds without CUDA.
#include "backend/device_backend.h"
#include "backend/ended_operation.h"
#include "backend/gpu_support.h"

namespace rueda {

namespace {

Status absent() {
  return {ErrorCode::unsupported,
          "this build of Rueda has no GPU support: install one that was built with cuda.h"};
}

class NoDeviceBackend final : public DeviceBackend {
 public:
  [[nodiscard]] std::string_view name() const override { return "none"; }
  Expected<std::shared_ptr<DeviceEvent>> mark(int, void*) override { return absent(); }
  void agree_on_results() override {}
  void await(std::shared_ptr<DeviceEvent>) override {}
  [[nodiscard]] Status watch(Time) override { return {}; }
  [[nodiscard]] std::optional<Time> next_look() const override { return std::nullopt; }
  void forget(int) override {}
  void abort(const Status&) override {}
  void close() override {}
  std::unique_ptr<Operation> persist(const Lane&, const Reduction&, Piece, TakeReduction) override {
    return std::make_unique<EndedOperation>(absent());
  }

  // Reached only on a rank that has joined while others reduce GPU tensors.
  std::unique_ptr<Operation> allreduce(const Lane&, const Reduction&, std::vector<Piece>) override {
    return std::make_unique<EndedOperation>(absent());
  }
  std::unique_ptr<Operation> reduce_scatter(const Lane&, const Reduction&, const std::byte*,
                                            std::byte*, std::vector<std::int64_t>) override {
    return std::make_unique<EndedOperation>(absent());
  }
  std::unique_ptr<Operation> allgather(const Lane&, const std::byte*, std::byte*,
                                       std::vector<std::int64_t>) override {
    return std::make_unique<EndedOperation>(absent());
  }
  std::unique_ptr<Operation> broadcast(const Lane&, std::byte*, std::int64_t, int) override {
    return std::make_unique<EndedOperation>(absent());
  }
  std::unique_ptr<Operation> alltoall(const Lane&, AlltoallInput, AllocateRows) override {
    return std::make_unique<EndedOperation>(absent());
  }
};

}  // namespace

GpuSupport gpu_support(const Options&) {
  return {};
}

std::unique_ptr<DeviceBackend> make_device_backend(const Options&, Backend&) {
  return std::make_unique<NoDeviceBackend>();
}

}  // namespace rueda
