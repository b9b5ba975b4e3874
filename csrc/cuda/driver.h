// The CUDA driver, loaded at run time: a process without a GPU never needs it. Only the driver
// API is used, never the runtime's: there is no second copy of cudart beside torch's.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/options.h"
#include "core/status.h"

namespace rueda {

struct DriverTable;  // the driver's functions: cuda/driver_table.h, which needs cuda.h

// The oldest driver that is accepted, as the driver counts: 12020 is CUDA 12.2. Kernels take more
// than 4 KiB of parameters, and every GPU from sm_80 on is served.
inline constexpr int minimum_driver_version = 12020;
// "12.2" of 12020.
[[nodiscard]] std::string cuda_version_text(int version);

class CudaDriver {
 public:
  CudaDriver(std::unique_ptr<const DriverTable> functions, int version, std::string library);
  ~CudaDriver();
  CudaDriver(const CudaDriver&) = delete;
  CudaDriver& operator=(const CudaDriver&) = delete;

  [[nodiscard]] const DriverTable& functions() const { return *functions_; }
  [[nodiscard]] int version() const { return version_; }
  // The file that it was loaded from.
  [[nodiscard]] const std::string& library() const { return library_; }

  // How many GPUs this process may use (CUDA_VISIBLE_DEVICES counts). 0 is no error.
  [[nodiscard]] Expected<int> device_count() const;

  // Success for 0; else "`what` failed: NAME (text)" with the driver's own words. `code` is a
  // CUresult.
  [[nodiscard]] Status check(int code, std::string_view what) const;

 private:
  std::unique_ptr<const DriverTable> functions_;
  int version_;
  std::string library_;
};

// Loads the driver once per process and file. Fails (ErrorCode::initialization) where there is
// none, where it is older than minimum_driver_version (both are named), where it cannot start, and
// where Rueda was built without cuda.h. A failure is not remembered.
//
//     auto driver = load_cuda(options);
//     if (!driver) return driver.status();
//     auto device = CudaDevice::open(**driver, 0);
[[nodiscard]] Expected<const CudaDriver*> load_cuda(const Options& options);

}  // namespace rueda
