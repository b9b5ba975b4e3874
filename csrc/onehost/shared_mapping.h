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

// A sparse file of zeros: takes memory only as it is touched. Its length is sealed, so that an
// access within it faults only where the system has no memory left: see populate().
[[nodiscard]] Expected<UniqueFd> make_memory_file(std::size_t bytes);

// As long as `wanted`, or as the limits of this process leave room for: at most its file size limit
// and a sixteenth of its address space limit, since peers' files are mapped as well.
[[nodiscard]] std::size_t sparse_length(std::size_t wanted);

// Whether two descriptors are of the same file.
[[nodiscard]] bool is_same_file(int one, int other);

// All of a file, readable and writable, beginning at a multiple of a huge page. Not part of core
// files.
class SharedMapping {
 public:
  enum class InChildren { kept, dropped };  // after fork()
  enum class Pages { huge, any };           // what is asked of the kernel

  SharedMapping() = default;
  [[nodiscard]] static Expected<SharedMapping> of(int fd, InChildren in_children,
                                                  Pages pages = Pages::huge);
  // The one of this file that this process has already, or a new one that children do not get, on
  // any pages: of large files of which little is used. So ranks that are threads of one process
  // share it, and what watches them for data races knows that it is one memory.
  [[nodiscard]] static Expected<std::shared_ptr<const SharedMapping>> in_common(int fd);
  SharedMapping(SharedMapping&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  SharedMapping& operator=(SharedMapping&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~SharedMapping();

  // In a child after fork(): what it writes to whole pages [offset, offset + bytes) of the mapping
  // is seen by nobody else from now on. Until it writes, it sees what its parent has there. Where
  // there is no memory for that, writing ends the child with SIGSEGV. Async-signal-safe.
  void make_private(int fd, std::size_t offset, std::size_t bytes) const;

  [[nodiscard]] std::byte* memory() const { return memory_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  SharedMapping(void* memory, std::size_t bytes)
      : memory_(static_cast<std::byte*>(memory)), bytes_(bytes) {}

  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

// Puts memory behind whole pages of a shared mapping and leaves what they hold. Where the system
// has none left (false), it may be behind some of them; to touch the others would end the process
// with SIGBUS. Kernels before 5.14 do not tell: true, and nothing is done.
[[nodiscard]] bool populate(std::byte* begin, std::size_t bytes);

// Makes whole pages of a mapping zeros again, and gives their memory back where that is possible
// (true).
bool punch_out(std::byte* begin, std::size_t bytes);

}  // namespace rueda
