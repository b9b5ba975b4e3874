// Memory of this process that the other ranks of the host can reach directly: one sparse anonymous
// file, mapped once, from which tensors are allocated. It belongs to the process, not to a world: a
// tensor stays valid over shutdown() and init().
//
// Tensors of 2 MiB and more get whole huge pages of the file for themselves, smaller ones share.
// A child after fork() sees the tensors of its parent; what it writes there is its own, as with all
// other memory. It neither allocates nor frees there: of_process() gives it memory of its own.
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
  // Made with the first call; the reason, always the same, where it cannot be made.
  [[nodiscard]] static Expected<RegisteredMemory*> of_process();

  // Zeroed, aligned to 64 bytes (to 2 MiB from 2 MiB on, and then on huge pages where the kernel
  // gives them), with memory behind all of it. Null when there is no room or no memory left.
  // Thread-safe, as is freeing.
  [[nodiscard]] std::shared_ptr<std::byte[]> allocate(std::size_t bytes);

  // Where the memory [address, address + bytes) lies in the file; nothing when it does not lie in
  // allocated registered memory wholly. Lock-free and quick: asked for every tensor. Within the
  // huge pages that small tensors share, what is free between them counts as allocated.
  [[nodiscard]] std::optional<std::uint64_t> offset_of(const void* address,
                                                       std::size_t bytes) const {
    const std::uint64_t offset = reinterpret_cast<std::uintptr_t>(address) -
                                 reinterpret_cast<std::uintptr_t>(mapping_.memory());
    if (offset >= mapping_.bytes()) return std::nullopt;  // below the memory it is huge
    const std::uint64_t end =
        std::uint64_t{allocated_until_[offset / huge_page].load(std::memory_order_acquire)} *
        huge_page;
    if (end == 0 || bytes > end - offset) return std::nullopt;
    return offset;
  }

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] std::byte* memory() const { return mapping_.memory(); }
  [[nodiscard]] std::size_t bytes() const { return mapping_.bytes(); }  // length of the file

  // In a child after fork(), once: from now on the child's writes are its own. Async-signal-safe.
  void make_private();

  // How much of it is known to lie on huge pages at present, allocated or kept for reuse.
  [[nodiscard]] std::size_t huge_page_bytes() const {
    return huge_pages_.load(std::memory_order_relaxed) * huge_page;
  }

 private:
  // What a huge page of the file has behind it.
  enum class Backing : std::uint8_t { none, small, huge };

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
  // How much of it has no memory behind it.
  [[nodiscard]] std::size_t without_memory(FreeRange range) const;
  [[nodiscard]] Backing& backing(std::uint64_t offset) { return backing_[offset / huge_page]; }

  const UniqueFd fd_;
  const SharedMapping mapping_;
  const int process_;
  // For each huge page of the file: the number of the page at which the allocation that it belongs
  // to ends; 0 while it is free. Pages that small tensors share end with themselves.
  std::vector<std::atomic<std::uint32_t>> allocated_until_;
  // Of the same pages. An entry belongs to whoever has allocated the page.
  std::vector<Backing> backing_;
  std::atomic<std::size_t> huge_pages_{0};
  bool is_private_ = false;  // this process has inherited it

  std::mutex mutex_;
  FreeRanges free_pages_;              // in whole huge pages
  FreeRanges free_pieces_{huge_page};  // of the pages that small tensors share
  std::size_t kept_bytes_ = 0;         // are free and still have memory behind them
};

}  // namespace rueda
