#include "onehost/recurring_memory.h"

#include "core/log.h"
#include "onehost/huge_pages.h"
#include "onehost/shared_mapping.h"

namespace rueda {

namespace {

// At its ends a tensor shares pages with others: it takes those of which it has half at least, so
// that memory of which nothing is used yet does not grow by more than that.
constexpr std::uint64_t half = huge_page / 2;
constexpr std::uint64_t first_page(std::uint64_t begin) {
  return (begin + half) / huge_page * huge_page;
}
constexpr std::uint64_t last_page(std::uint64_t end) {
  return (end + half) / huge_page * huge_page;
}

}  // namespace

void RecurringMemory::comes(const void* address, std::size_t bytes, std::uint64_t time) {
  if (bytes < half) return;
  const auto begin = reinterpret_cast<std::uint64_t>(address);
  const std::uint64_t first = first_page(begin);
  const std::uint64_t last = last_page(begin + bytes);
  if (first >= last) return;
  if (time == 1 ? !is_due(begin) : time != first_time) return;
  auto* const pages = reinterpret_cast<std::byte*>(first);
  const std::size_t gained = put_used_on_huge_pages(pages, last - first);
  huge_page_bytes_.fetch_add(gained, std::memory_order_relaxed);
  log(LogLevel::debug, "of a tensor of ", bytes, " bytes that comes again, ", gained,
      " bytes lie on huge pages");
}

bool RecurringMemory::is_due(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  if (tensors_.size() >= most_tensors && !tensors_.contains(address)) tensors_.clear();
  Times& times = tensors_[address];
  if (++times.came < times.next) return false;
  if (times.next > UINT32_MAX / growth) {
    times.came = 0;  // begins anew before it overflows
    times.next = first_time;
  } else {
    times.next *= growth;
  }
  return true;
}

}  // namespace rueda
