// The CUDA driver, loaded at run time: a process without a GPU never needs it. Uses only the driver
// API, not the runtime's, so there is no second copy of cudart next to torch's.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/options.h"
#include "core/status.h"

namespace rueda {

struct DriverTable;  // the driver's functions: cuda/driver_table.h, which needs cuda.h

// The oldest accepted driver, in the driver's encoding: 12020 is CUDA 12.2. Allows more than 4 KiB
// of kernel parameters and supports all GPUs from sm_80 on.
inline constexpr int minimum_driver_version = 12020;
// 12020 gives "12.2".
[[nodiscard]] std::string cuda_version_text(int version);

class CudaDriver {
 public:
  CudaDriver(std::unique_ptr<const DriverTable> functions, int version, std::string library);
  ~CudaDriver();
  CudaDriver(const CudaDriver&) = delete;
  CudaDriver& operator=(const CudaDriver&) = delete;

  [[nodiscard]] const DriverTable& functions() const { return *functions_; }
  [[nodiscard]] int version() const { return version_; }
  // The file it was loaded from.
  [[nodiscard]] const std::string& library() const { return library_; }

  // Number of GPUs this process may use (subject to CUDA_VISIBLE_DEVICES). 0 is not an error.
  [[nodiscard]] Expected<int> device_count() const;

  // Ok for 0; otherwise "`what` failed: NAME (text)" in the driver's words. `code` is a CUresult.
  [[nodiscard]] Status check(int code, std::string_view what) const;

 private:
  std::unique_ptr<const DriverTable> functions_;
  int version_;
  std::string library_;
};

// Loads the driver once per process and file. Fails (ErrorCode::initialization) if there is none,
// it is older than minimum_driver_version (names both), it cannot start, or Rueda was built without
// cuda.h. A failure is not cached.
//
//     auto driver = load_cuda(options);
//     if (!driver) return driver.status();
//     auto device = CudaDevice::open(**driver, 0);
[[nodiscard]] Expected<const CudaDriver*> load_cuda(const Options& options);

}  // namespace rueda
