#include "backend/large_results.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

#include "onehost/shared_mapping.h"

namespace rueda {

class LargeResults::Mapping {
 public:
  // Maps enough to start at a huge-page boundary; pages that are never touched cost nothing.
  explicit Mapping(std::size_t bytes)
      : bytes_(bytes),
        mapping_(::mmap(nullptr, bytes + huge_page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (mapping_ == MAP_FAILED) throw std::bad_alloc();
    const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
    begin_ = static_cast<std::byte*>(mapping_) + (huge_page - address % huge_page) % huge_page;
    if (bytes >= huge_page) ::madvise(begin_, bytes / huge_page * huge_page, MADV_HUGEPAGE);
  }
  ~Mapping() { ::munmap(mapping_, bytes_ + huge_page); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  [[nodiscard]] std::byte* begin() const { return begin_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  // In effect until it is written again.
  void mark_as_free() const { ::madvise(begin_, bytes_, MADV_FREE); }

 private:
  const std::size_t bytes_;
  void* const mapping_;
  std::byte* begin_ = nullptr;
};

std::shared_ptr<std::byte[]> LargeResults::allocate(std::size_t bytes) {
  std::shared_ptr<Mapping> mapping = take(bytes);
  if (!mapping) mapping = std::make_shared<Mapping>(bytes);
  std::byte* const begin = mapping->begin();
  return {begin, [pool = shared_from_this(), mapping = std::move(mapping)](std::byte*) {
            pool->give_back(mapping);
          }};
}

std::size_t LargeResults::kept() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

// Takes the smallest mapping that is large enough, but none more than twice as large.
std::shared_ptr<LargeResults::Mapping> LargeResults::take(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  auto best = kept_.end();
  for (auto each = kept_.begin(); each != kept_.end(); ++each) {
    const std::size_t has = (*each)->bytes();
    if (has < bytes || has / 2 > bytes) continue;
    if (best == kept_.end() || has < (*best)->bytes()) best = each;
  }
  if (best == kept_.end()) return nullptr;
  std::shared_ptr<Mapping> taken = std::move(*best);
  kept_.erase(best);
  kept_bytes_ -= taken->bytes();
  return taken;
}

void LargeResults::give_back(std::shared_ptr<Mapping> mapping) {
  if (mapping->bytes() > max_kept_bytes) return;
  if (mapping->bytes() >= marked_bytes) mapping->mark_as_free();
  std::list<std::shared_ptr<Mapping>> dropped;  // unmapped after unlocking
  const std::lock_guard lock(mutex_);
  kept_bytes_ += mapping->bytes();
  kept_.push_back(std::move(mapping));
  while (kept_bytes_ > max_kept_bytes || kept_.size() > max_kept_pieces) {
    kept_bytes_ -= kept_.front()->bytes();
    dropped.splice(dropped.end(), kept_, kept_.begin());
  }
}

}  // namespace rueda
