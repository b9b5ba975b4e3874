// Memory for large results, which the application gets and gives back, from whichever thread.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

namespace rueda {

// Memory that has just been mapped costs a fault for each page, all in all more than a collective
// that fills it: what has been given back is kept for the next result. Where it is much, it is
// marked as free (MADV_FREE), so that the kernel takes it away where memory is short. It begins at
// a huge page and lies on huge pages as far as the kernel has some.
class LargeResults : public std::enable_shared_from_this<LargeResults> {
 public:
  // From here on a result comes from the pool.
  static constexpr std::size_t min_bytes = 512 << 10;
  // From here on it is marked: that takes as long as a collective of a few MiB.
  static constexpr std::size_t marked_bytes = 16 << 20;
  // At most so much is kept, and so many pieces.
  static constexpr std::size_t max_kept_bytes = 512 << 20;
  static constexpr std::size_t max_kept_pieces = 8;

  [[nodiscard]] static std::shared_ptr<LargeResults> make() {
    return std::shared_ptr<LargeResults>(new LargeResults);
  }

  // Uninitialised. The pool lives on until it is given back. Throws std::bad_alloc.
  [[nodiscard]] std::shared_ptr<std::byte[]> allocate(std::size_t bytes);
  // Bytes that wait for the next result.
  [[nodiscard]] std::size_t kept() const;

 private:
  class Mapping;

  LargeResults() = default;
  [[nodiscard]] std::shared_ptr<Mapping> take(std::size_t bytes);
  void give_back(std::shared_ptr<Mapping> mapping);

  mutable std::mutex mutex_;
  std::list<std::shared_ptr<Mapping>> kept_;  // the latest last
  std::size_t kept_bytes_ = 0;
};

}  // namespace rueda
