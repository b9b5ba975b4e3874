#include "cuda/batch_kernels.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/strings.h"
#include "cuda/driver_table.h"
#include "cuda/kernels/batch.h"

namespace rueda {

namespace {

// For small and for large batches.
constexpr std::array kernel_names{"rueda_copy_small", "rueda_copy_large"};

std::uint64_t address_of(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory);
}

std::optional<cuda::Element> float_element(DataType dtype) {
  switch (dtype) {
    case DataType::float16: return cuda::Element::float16;
    case DataType::bfloat16: return cuda::Element::bfloat16;
    case DataType::float32: return cuda::Element::float32;
    case DataType::float64: return cuda::Element::float64;
    default: return std::nullopt;
  }
}

Status refused(DataType dtype) {
  return Status(ErrorCode::unsupported,
                str("conversion or scaling of ", name_of(dtype),
                    ": on a GPU only float16, bfloat16, float32 and float64 are supported"));
}

Expected<cuda::CopyItem> item_of(const TensorCopy& tensor, double scale) {
  const auto from = float_element(tensor.from);
  const auto to = float_element(tensor.to);
  if (tensor.from == tensor.to && (scale == 1.0 || tensor.source == nullptr)) {
    return cuda::CopyItem{address_of(tensor.source),
                          address_of(tensor.destination),
                          tensor.elements * size_of(tensor.from),
                          0,
                          cuda::Element::bytes,
                          cuda::Element::bytes};
  }
  if (!from || !to) return refused(from ? tensor.to : tensor.from);
  return cuda::CopyItem{
      address_of(tensor.source), address_of(tensor.destination), tensor.elements, 0, *from, *to};
}

}  // namespace

Expected<BatchKernels> BatchKernels::load(DeviceReference device,
                                          std::span<const std::byte> image) {
  if (image.empty()) {
    return Status(ErrorCode::unsupported,
                  "Rueda was built without CUDA kernels. Build it again with nvcc 12.8 or newer on "
                  "the PATH, or after pip install nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-runtime "
                  "nvidia-cuda-crt");
  }
  const CurrentDevice current(*device);
  if (!current.status().ok()) return current.status();
  CUmodule module = nullptr;
  if (Status status =
          device->check(device->functions().module_load(&module, image.data()), "cuModuleLoadData");
      !status.ok()) {
    return Status(ErrorCode::unsupported,
                  str("the CUDA kernels, made by ", kernel_image_origin(), ", cannot be loaded on ",
                      device->facts().name, " (sm_", device->facts().compute_capability,
                      ") with a driver for CUDA ", cuda_version_text(device->driver().version())))
        .because(status);
  }
  BatchKernels kernels(device, module);  // not moved from: `current` needs it until the end
  for (const char* name : kernel_names) {
    const CudaDevice& owner = *kernels.device_;
    CUfunction function = nullptr;
    if (Status status = owner.check(owner.functions().module_function(&function, module, name),
                                    str("cuModuleGetFunction of ", name));
        !status.ok()) {
      return status;
    }
    kernels.functions_.emplace(name, function);
  }
  return kernels;
}

BatchKernels::BatchKernels(DeviceReference device, ModuleHandle module)
    : device_(std::move(device)), module_(module) {}

BatchKernels::BatchKernels(BatchKernels&& other) noexcept
    : device_(std::move(other.device_)),
      module_(std::exchange(other.module_, nullptr)),
      functions_(std::move(other.functions_)) {}

BatchKernels& BatchKernels::operator=(BatchKernels&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(module_, other.module_);
  std::swap(functions_, other.functions_);
  return *this;
}

BatchKernels::~BatchKernels() {
  if (module_ == nullptr) return;
  const CurrentDevice current(*device_);
  device_->functions().module_unload(module_);
}

Status BatchKernels::copy(const CudaStream& stream, std::span<const TensorCopy> tensors,
                          double scale) const {
  std::vector<cuda::CopyItem> items;
  items.reserve(tensors.size());
  for (const TensorCopy& tensor : tensors) {
    auto item = item_of(tensor, scale);
    if (!item) return item.status();
    if (tensor.elements > 0) items.push_back(*item);
  }
  return launch(stream, items, scale);
}

Status BatchKernels::launch(const CudaStream& stream, std::span<cuda::CopyItem> items,
                            double scale) const {
  const auto run = [&](auto batch, const char* kernel, std::span<const cuda::CopyItem> part,
                       std::uint32_t tiles) {
    batch.items = static_cast<std::uint32_t>(part.size());
    batch.scale = scale;
    std::copy(part.begin(), part.end(), batch.item);
    return start(stream, kernel, tiles, &batch);
  };
  while (!items.empty()) {
    const auto part = items.first(std::min<std::size_t>(items.size(), cuda::max_items));
    std::uint64_t tiles = 0;
    for (cuda::CopyItem& item : part) {
      item.first_tile = static_cast<std::uint32_t>(tiles);
      const std::uint64_t length = elements_per_tile(item.from, item.to);
      tiles += (item.elements + length - 1) / length;
      if (tiles > std::numeric_limits<std::int32_t>::max())
        return Status(ErrorCode::invalid_argument, "a batch of more than 32 TiB");
    }
    const auto grid = static_cast<std::uint32_t>(tiles);
    const Status status = part.size() <= cuda::few_items
                              ? run(cuda::SmallBatch{}, "rueda_copy_small", part, grid)
                              : run(cuda::LargeBatch{}, "rueda_copy_large", part, grid);
    if (!status.ok()) return status;
    items = items.subspan(part.size());
  }
  return {};
}

Status BatchKernels::start(const CudaStream& stream, const std::string& kernel, std::uint32_t tiles,
                           void* parameters) const {
  const CurrentDevice current(*device_, DriverUse::enqueue);
  if (!current.status().ok()) return current.status();
  const FunctionHandle function = functions_.find(kernel)->second;
  return device_->check(
      device_->functions().launch_kernel(function, tiles, 1, 1, cuda::threads_per_block, 1, 1, 0,
                                         stream.handle(), &parameters, nullptr),
      str("launching ", kernel));
}

}  // namespace rueda
