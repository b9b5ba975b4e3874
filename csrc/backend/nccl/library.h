// NCCL, loaded at run time: the copy that torch brings where there is one, so that a process has
// one.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "backend/nccl/nccl_api.h"
#include "core/options.h"
#include "core/status.h"
#include "rueda/types.h"

namespace rueda {

// The oldest NCCL that is accepted, as it counts: 22700 is 2.27, which has windows.
inline constexpr int minimum_nccl_version = 22700;
// "2.27.3" of 22703.
[[nodiscard]] std::string nccl_version_text(int version);

class NcclLibrary {
 public:
  NcclLibrary(const nccl::Functions& functions, int version, std::string file);

  [[nodiscard]] const nccl::Functions& functions() const { return functions_; }
  [[nodiscard]] int version() const { return version_; }
  [[nodiscard]] const std::string& file() const { return file_; }

  // Success for ncclSuccess and ncclInProgress; else "`what` failed: TEXT: NCCL's last error".
  // `communicator` may be null. ErrorCode::peer_lost where another rank failed.
  [[nodiscard]] Status check(nccl::Result result, std::string_view what,
                             nccl::Comm communicator = nullptr) const;

  // What identifies a communicator to come. One rank makes it, and hands it to the others.
  [[nodiscard]] Expected<nccl::UniqueId> unique_id() const;

 private:
  nccl::Functions functions_;
  int version_;
  std::string file_;
};

// Loads NCCL once per process and file: as named by the option nccl_library; else as loaded
// already; else of the environment's wheels (nvidia-nccl-*, as seen from librueda.so and the active
// environment); else of the system. Fails (ErrorCode::initialization) with what was tried and what
// to install, or with both versions where NCCL is too old. A failure is not remembered.
[[nodiscard]] Expected<const NcclLibrary*> load_nccl(const Options& options);

// How NCCL reduces `op` on `dtype`, or ErrorCode::unsupported: NCCL has no bitwise operations nor
// 16-bit integers, and its averages are not used (NcclCombination). Complex numbers are summed as
// pairs.
struct NcclReduction {
  nccl::DataTypeNumber dtype;
  nccl::RedOp op;
  std::size_t parts;  // of each element: 2 for complex numbers
};
[[nodiscard]] Expected<NcclReduction> nccl_reduction(ReduceOp op, DataType dtype);

}  // namespace rueda
