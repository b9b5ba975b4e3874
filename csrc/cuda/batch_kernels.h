// Work on many tensors of a GPU in one launch: packing and unpacking with conversion and scaling,
// the search for infinities, and quantisation.
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

// Elements at any address that is a multiple of their size, and of any number; both sides aligned
// to 16 bytes are fastest. A null source stands for zeros.
struct TensorCopy {
  const void* source = nullptr;
  void* destination = nullptr;
  std::uint64_t elements = 0;
  DataType from = DataType::float32;
  DataType to = DataType::float32;
};

struct TensorCheck {
  const void* source = nullptr;
  std::uint64_t elements = 0;
  DataType dtype = DataType::float32;
};

// Blocks of 32 elements share a float32 scale: value = scale * code. Codes are int8, one for each
// element; there are quantized_scales(elements) scales, aligned to 4 bytes.
struct TensorQuantization {
  void* values = nullptr;
  void* codes = nullptr;
  void* scales = nullptr;
  std::uint64_t elements = 0;
  DataType dtype = DataType::float32;  // of the values
};
[[nodiscard]] std::uint64_t quantized_scales(std::uint64_t elements);

// The kernels on one device. All launches are asynchronous and may be captured into a graph. One
// launch takes up to 1000 tensors (800 of a quantisation); beyond there are several. Tensors
// without elements cost nothing.
class BatchKernels {
 public:
  // Fails with ErrorCode::unsupported where Rueda was built without nvcc, and where the kernels are
  // not for this GPU or driver.
  [[nodiscard]] static Expected<BatchKernels> load(
      DeviceReference device, std::span<const std::byte> image = kernel_image());
  BatchKernels(BatchKernels&& other) noexcept;
  BatchKernels& operator=(BatchKernels&& other) noexcept;
  ~BatchKernels();

  // destination[i] = to(scale * source[i]). Any element type without conversion and scale; float16,
  // bfloat16, float32 and float64 with. Computed in float32, or in float64 where source or
  // destination is (float64 becomes a 16-bit float by way of float32), and rounded to nearest, ties
  // to even. Tensors must not overlap. ErrorCode::unsupported for other conversions.
  //
  //     kernels.copy(stream, {{gradient, bucket, 1000, DataType::float32, DataType::bfloat16}},
  //     0.5);
  [[nodiscard]] Status copy(const CudaStream& stream, std::span<const TensorCopy> tensors,
                            double scale = 1.0) const;

  // Sets *flag, a float32 of the device that the caller has cleared, to 1 where any element is
  // infinite or NaN, as torch's GradScaler wants it. Of floating-point tensors.
  [[nodiscard]] Status check_finite(const CudaStream& stream, std::span<const TensorCheck> tensors,
                                    float* flag) const;

  // Codes and scales of scale * values. A block with an element that is not finite becomes NaN.
  [[nodiscard]] Status quantize(const CudaStream& stream,
                                std::span<const TensorQuantization> tensors,
                                double scale = 1.0) const;
  // values[i] = scale * (scale of the block * code).
  [[nodiscard]] Status dequantize(const CudaStream& stream,
                                  std::span<const TensorQuantization> tensors,
                                  double scale = 1.0) const;

 private:
  BatchKernels(DeviceReference device, ModuleHandle module);

  // Launches the items, cut into tiles of `tile_elements(item)` elements, as often as needed.
  template <class Item, class TileElements>
  Status launch(const CudaStream& stream, const std::string& kernel, std::span<Item> items,
                double scale, float* flag, const TileElements& tile_elements) const;
  Status run_quantization(const CudaStream& stream, const std::string& kernel,
                          std::span<const TensorQuantization> tensors, double scale) const;
  Status start(const CudaStream& stream, const std::string& kernel, std::uint32_t tiles,
               void* parameters) const;

  DeviceReference device_;
  ModuleHandle module_ = nullptr;
  std::map<std::string, FunctionHandle, std::less<>> functions_;
};

}  // namespace rueda
