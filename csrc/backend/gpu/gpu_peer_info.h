// What the ranks of a process set tell each other before their first operation on GPUs, and the
// path that all of them derive from it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/nccl/nccl_api.h"
#include "core/status.h"

namespace rueda {

enum class GpuPath : std::uint8_t {
  nccl,
  staged,  // through pinned host memory, and from there as host tensors
};
[[nodiscard]] std::string_view name_of(GpuPath path);

// Sent as raw bytes. Texts are zero-terminated.
struct GpuPeerInfo {
  bool has_gpu = false;
  bool has_nccl = false;
  bool has_kernels = false;
  bool may_share = false;  // its GPU with other ranks
  std::int32_t nccl_version = 0;
  std::array<char, 128> host{};     // machine, identical for its ranks
  std::array<char, 32> gpu{};       // PCI bus id
  std::array<char, 512> problem{};  // why there is no GPU or no NCCL
  nccl::UniqueId id{};              // for a communicator; the first rank's is used
};

// Truncates the text to fit.
template <std::size_t size>
void write_text(std::array<char, size>& target, std::string_view text) {
  target.fill(0);
  text.copy(target.data(), size - 1);
}

struct PathChoice {
  GpuPath path = GpuPath::staged;
  std::string why_not_nccl;  // empty if NCCL is used
  bool is_fallback = false;  // not what was asked for
};

// The first NCCL that lets ranks share a GPU: 2.30.
inline constexpr int sharing_nccl_version = 23000;

// Applies the option gpu_backend ("auto", "nccl" or "staged"). NCCL is used if every rank has it
// and a GPU of its own, or one it may share. Not ok if a rank has no GPU, or if NCCL is demanded
// but cannot be used; the status says why. `members`: world ranks, in the order of the infos.
[[nodiscard]] Expected<PathChoice> choose_path(std::span<const GpuPeerInfo> infos,
                                               const std::vector<int>& members,
                                               const std::string& wanted);

}  // namespace rueda
