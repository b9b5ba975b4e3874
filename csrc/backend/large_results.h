// Memory for large results. The application gets it and returns it, on any thread.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

namespace rueda {

// Freshly mapped memory costs a page fault per page, in total more than the collective that fills
// it. So memory that is returned is kept for the next result. Large pieces are marked as free
// (MADV_FREE) so that the kernel can reclaim them when memory is short. Memory starts at a
// huge-page boundary and uses huge pages as far as the kernel has any.
class LargeResults : public std::enable_shared_from_this<LargeResults> {
 public:
  // Smallest result that comes from the pool.
  static constexpr std::size_t min_bytes = 512 << 10;
  // Smallest one that is marked; marking takes as long as a collective of a few MiB.
  static constexpr std::size_t marked_bytes = 16 << 20;
  // Limits on what is kept.
  static constexpr std::size_t max_kept_bytes = 512 << 20;
  static constexpr std::size_t max_kept_pieces = 8;

  [[nodiscard]] static std::shared_ptr<LargeResults> make() {
    return std::shared_ptr<LargeResults>(new LargeResults);
  }

  // Uninitialised. The pool outlives the memory. Throws std::bad_alloc.
  [[nodiscard]] std::shared_ptr<std::byte[]> allocate(std::size_t bytes);
  // Bytes kept for later results.
  [[nodiscard]] std::size_t kept() const;

 private:
  class Mapping;

  LargeResults() = default;
  [[nodiscard]] std::shared_ptr<Mapping> take(std::size_t bytes);
  void give_back(std::shared_ptr<Mapping> mapping);

  mutable std::mutex mutex_;
  std::list<std::shared_ptr<Mapping>> kept_;  // most recent last
  std::size_t kept_bytes_ = 0;
};

}  // namespace rueda
