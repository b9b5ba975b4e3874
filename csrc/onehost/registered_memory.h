// Memory of this process that the host's other ranks can access directly: one sparse anonymous
// file, mapped once, from which tensors are allocated. It belongs to the process, not to a world:
// tensors stay valid across shutdown() and init().
//
// Tensors of 2 MiB and more get whole huge pages of the file; smaller ones share pages. A child
// after fork() sees its parent's tensors; its writes are private, as for all other memory. It
// neither allocates nor frees there: of_process() gives it memory of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/status.h"
#include "core/unique_fd.h"
#include "onehost/free_ranges.h"
#include "onehost/shared_mapping.h"

namespace rueda {

class RegisteredMemory {
 public:
  // Created by the first call. Returns the reason, always the same, if that fails.
  [[nodiscard]] static Expected<RegisteredMemory*> of_process();

  // Zeroed, fully populated memory, aligned to 64 bytes (2 MiB from 2 MiB on, and then on huge
  // pages if the kernel provides them). Null if there is no room or no memory. Thread-safe, as is
  // freeing.
  [[nodiscard]] std::shared_ptr<std::byte[]> allocate(std::size_t bytes);

  // Offset of [address, address + bytes) in the file; nullopt unless it is entirely in allocated
  // registered memory. Lock-free and fast, since it is called for every tensor. Gaps between small
  // tensors on a shared huge page count as allocated.
  [[nodiscard]] std::optional<std::uint64_t> offset_of(const void* address,
                                                       std::size_t bytes) const {
    const std::uint64_t offset = reinterpret_cast<std::uintptr_t>(address) -
                                 reinterpret_cast<std::uintptr_t>(mapping_.memory());
    if (offset >= mapping_.bytes()) return std::nullopt;  // huge if `address` is below the memory
    const std::uint64_t end =
        std::uint64_t{allocated_until_[offset / huge_page].load(std::memory_order_acquire)} *
        huge_page;
    if (end == 0 || bytes > end - offset) return std::nullopt;
    return offset;
  }

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] std::byte* memory() const { return mapping_.memory(); }
  [[nodiscard]] std::size_t bytes() const { return mapping_.bytes(); }  // length of the file

  // For a child after fork(), once: makes its later writes private. Async-signal-safe.
  void make_private();

  // Bytes known to be on huge pages now, whether allocated or kept for reuse.
  [[nodiscard]] std::size_t huge_page_bytes() const {
    return huge_pages_.load(std::memory_order_relaxed) * huge_page;
  }

 private:
  // What backs a huge page of the file; `partial`: small pages, but not all of them.
  enum class Backing : std::uint8_t { none, partial, small, huge };

  RegisteredMemory(UniqueFd fd, SharedMapping mapping);
  static Expected<std::unique_ptr<RegisteredMemory>> make();

  std::byte* allocate_small(std::size_t bytes);
  std::byte* allocate_large(std::size_t bytes);
  void free_small(std::byte* memory, std::size_t bytes);
  void free_large(std::byte* memory, std::size_t bytes);
  [[nodiscard]] bool is_of_this_process() const;

  std::optional<FreeRange> take_pages(std::size_t bytes);  // with the lock held
  void give_pages(FreeRange range);                        // with the lock held
  void drop_pages(FreeRange range);                        // with the lock held
  void mark_allocated(FreeRange range);
  void mark_free(FreeRange range);
  [[nodiscard]] bool prepare(FreeRange range, std::size_t bytes);
  [[nodiscard]] bool clear(FreeRange range);
  [[nodiscard]] bool back(FreeRange range);
  // Bytes of the range without memory behind them.
  [[nodiscard]] std::size_t without_memory(FreeRange range) const;
  [[nodiscard]] Backing& backing(std::uint64_t offset) { return backing_[offset / huge_page]; }

  const UniqueFd fd_;
  const SharedMapping mapping_;
  const int process_;
  // For each huge page of the file: the page number at which its allocation ends; 0 while free.
  // Pages shared by small tensors end with themselves.
  std::vector<std::atomic<std::uint32_t>> allocated_until_;
  // For the same pages. An entry belongs to the thread that allocated the page.
  std::vector<Backing> backing_;
  std::atomic<std::size_t> huge_pages_{0};
  bool is_private_ = false;  // inherited by this process

  std::mutex mutex_;
  FreeRanges free_pages_;              // whole huge pages
  FreeRanges free_pieces_{huge_page};  // in pages that small tensors share
  std::size_t kept_bytes_ = 0;         // free but still backed by memory
};

}  // namespace rueda
