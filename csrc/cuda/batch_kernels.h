// Processes many GPU tensors in one launch: packs and unpacks, with conversion and scaling.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "core/status.h"
#include "cuda/device.h"
#include "cuda/kernel_image.h"
#include "cuda/stream.h"
#include "rueda/types.h"

namespace rueda {

namespace cuda {
struct CopyItem;
}

// Elements may start at any multiple of their size, in any number; 16-byte alignment on both sides
// is fastest. A null source stands for zeros.
struct TensorCopy {
  const void* source = nullptr;
  void* destination = nullptr;
  std::uint64_t elements = 0;
  DataType from = DataType::float32;
  DataType to = DataType::float32;
};

// The kernels on one device. All launches are asynchronous and can be captured into a graph. One
// launch takes up to 1000 tensors; larger batches need several. Empty tensors cost nothing.
class BatchKernels {
 public:
  // ErrorCode::unsupported if Rueda was built without nvcc, or the kernels do not support this GPU
  // or driver.
  [[nodiscard]] static Expected<BatchKernels> load(
      DeviceReference device, std::span<const std::byte> image = kernel_image());
  BatchKernels(BatchKernels&& other) noexcept;
  BatchKernels& operator=(BatchKernels&& other) noexcept;
  ~BatchKernels();

  // destination[i] = to(scale * source[i]). Any element type without conversion and scale; float16,
  // bfloat16, float32 and float64 with. Computed in float32, or in float64 if source or destination
  // is (float64 becomes a 16-bit float via float32), and rounded to nearest, ties to even. Tensors
  // must not overlap. ErrorCode::unsupported for other conversions.
  //
  //     kernels.copy(stream, {{gradient, bucket, 1000, DataType::float32, DataType::bfloat16}},
  //     0.5);
  [[nodiscard]] Status copy(const CudaStream& stream, std::span<const TensorCopy> tensors,
                            double scale = 1.0) const;

 private:
  BatchKernels(DeviceReference device, ModuleHandle module);

  // Launches the items, cut into tiles, in as many launches as needed.
  Status launch(const CudaStream& stream, std::span<cuda::CopyItem> items, double scale) const;
  Status start(const CudaStream& stream, const std::string& kernel, std::uint32_t tiles,
               void* parameters) const;

  DeviceReference device_;
  ModuleHandle module_ = nullptr;
  std::map<std::string, FunctionHandle, std::less<>> functions_;
};

}  // namespace rueda
