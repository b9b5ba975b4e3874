// Anonymous files that several processes map: no name, no limit of /dev/shm, gone with the last
// process.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "core/status.h"
#include "core/unique_fd.h"

namespace rueda {

inline constexpr std::size_t small_page = 4096;
inline constexpr std::size_t huge_page = std::size_t{2} << 20;

// `value` up to the next multiple of `unit`.
[[nodiscard]] constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// A sparse file of zeros: takes memory only as it is touched. Its length is sealed, so that no
// access within it can fault.
[[nodiscard]] Expected<UniqueFd> make_memory_file(std::size_t bytes);

// As long as `wanted`, or as the limits of this process leave room for: at most its file size limit
// and a sixteenth of its address space limit, since peers' files are mapped as well.
[[nodiscard]] std::size_t sparse_length(std::size_t wanted);

// Whether two descriptors are of the same file.
[[nodiscard]] bool is_same_file(int one, int other);

// All of a file, readable and writable, beginning at a multiple of a huge page.
class SharedMapping {
 public:
  enum class InChildren { kept, dropped };  // after fork()

  SharedMapping() = default;
  [[nodiscard]] static Expected<SharedMapping> of(int fd, InChildren in_children);
  // The one of this file that this process has already, or a new one that children do not get. So
  // ranks that are threads of one process share it, and what watches them for data races knows
  // that it is one memory.
  [[nodiscard]] static Expected<std::shared_ptr<const SharedMapping>> in_common(int fd);
  SharedMapping(SharedMapping&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  SharedMapping& operator=(SharedMapping&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~SharedMapping();

  [[nodiscard]] std::byte* memory() const { return memory_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  SharedMapping(void* memory, std::size_t bytes)
      : memory_(static_cast<std::byte*>(memory)), bytes_(bytes) {}

  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

// Makes whole pages of a mapping zeros again, and gives their memory back where that is possible
// (true).
bool punch_out(std::byte* begin, std::size_t bytes);

}  // namespace rueda
