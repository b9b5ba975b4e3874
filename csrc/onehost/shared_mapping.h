// Anonymous files that several processes map: no name, no /dev/shm limit, gone with the last
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

// Rounds `value` up to a multiple of `unit`.
[[nodiscard]] constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// A sparse file of zeros that takes memory only as it is touched. Its length is sealed, so an
// access within it faults only if the system is out of memory: see populate().
[[nodiscard]] Expected<UniqueFd> make_memory_file(std::size_t bytes);

// `wanted`, or less if this process's limits require it: at most its file size limit and 1/16 of
// its address space limit, since peers' files are mapped as well.
[[nodiscard]] std::size_t sparse_length(std::size_t wanted);

// Whether two descriptors refer to the same file.
[[nodiscard]] bool is_same_file(int one, int other);

// Maps a whole file, readable and writable, starting at a multiple of a huge page. Excluded from
// core dumps.
class SharedMapping {
 public:
  enum class InChildren { kept, dropped };  // after fork()
  enum class Pages { huge, any };           // requested from the kernel

  SharedMapping() = default;
  [[nodiscard]] static Expected<SharedMapping> of(int fd, InChildren in_children,
                                                  Pages pages = Pages::huge);
  // This process's existing mapping of the file, or a new one that children do not inherit, with
  // pages of any size. For large files of which little is used. Ranks that are threads of one
  // process thus share the mapping, and race detectors see it as one memory.
  [[nodiscard]] static Expected<std::shared_ptr<const SharedMapping>> in_common(int fd);
  SharedMapping(SharedMapping&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  SharedMapping& operator=(SharedMapping&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~SharedMapping();

  // For a child after fork(): makes its writes to the whole pages [offset, offset + bytes) of the
  // mapping private. Until it writes, it sees what its parent has there. If there is no memory for
  // that, a write ends the child with SIGSEGV. Async-signal-safe.
  void make_private(int fd, std::size_t offset, std::size_t bytes) const;

  [[nodiscard]] std::byte* memory() const { return memory_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  SharedMapping(void* memory, std::size_t bytes)
      : memory_(static_cast<std::byte*>(memory)), bytes_(bytes) {}

  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

// Populates whole pages of a shared mapping, preserving contents. Returns false if the system runs
// out of memory; some pages may be populated then, and touching the others would end the process
// with SIGBUS. Kernels before 5.14 cannot tell: returns true and does nothing.
[[nodiscard]] bool populate(std::byte* begin, std::size_t bytes);

// Zeroes whole pages of a mapping, and gives their memory back if possible (true).
bool punch_out(std::byte* begin, std::size_t bytes);

}  // namespace rueda
