// NCCL, loaded at run time. Prefers the copy that torch brings, so that a process has only one.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "backend/nccl/nccl_api.h"
#include "core/options.h"
#include "core/status.h"
#include "rueda/types.h"

namespace rueda {

// The oldest NCCL accepted, in NCCL's encoding: 22700 is 2.27, which has windows.
inline constexpr int minimum_nccl_version = 22700;
// 22703 gives "2.27.3".
[[nodiscard]] std::string nccl_version_text(int version);

class NcclLibrary {
 public:
  NcclLibrary(const nccl::Functions& functions, int version, std::string file);

  [[nodiscard]] const nccl::Functions& functions() const { return functions_; }
  [[nodiscard]] int version() const { return version_; }
  [[nodiscard]] const std::string& file() const { return file_; }

  // Ok for ncclSuccess and ncclInProgress; otherwise "`what` failed: TEXT: NCCL's last error".
  // `communicator` may be null. ErrorCode::peer_lost if another rank failed.
  [[nodiscard]] Status check(nccl::Result result, std::string_view what,
                             nccl::Comm communicator = nullptr) const;

  // Identifies a new communicator. One rank creates it and passes it to the others.
  [[nodiscard]] Expected<nccl::UniqueId> unique_id() const;

 private:
  nccl::Functions functions_;
  int version_;
  std::string file_;
};

// Loads NCCL once per process and file. Tries, in this order: the option nccl_library; a copy
// already loaded; the environment's wheels (nvidia-nccl-*, found from librueda.so and the active
// environment); the system's. Fails (ErrorCode::initialization) with what was tried and what to
// install, or, if NCCL is too old, with both versions. A failure is not cached.
[[nodiscard]] Expected<const NcclLibrary*> load_nccl(const Options& options);

// How NCCL reduces `op` on `dtype`, or ErrorCode::unsupported. NCCL has no bitwise operations and
// no 16-bit integers; its averages are not used (see NcclCombination). Complex numbers are summed
// as pairs.
struct NcclReduction {
  nccl::DataTypeNumber dtype;
  nccl::RedOp op;
  std::size_t parts;  // of each element: 2 for complex numbers
};
[[nodiscard]] Expected<NcclReduction> nccl_reduction(ReduceOp op, DataType dtype);

}  // namespace rueda
