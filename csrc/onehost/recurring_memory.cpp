#include "onehost/recurring_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>

#include "core/log.h"
#include "onehost/huge_pages.h"
#include "onehost/shared_mapping.h"

namespace rueda {

namespace {

// Smaller tensors gain nothing.
constexpr std::size_t least_bytes = 64 << 10;

// A tensor shares the pages at its ends with others. Memory grows by what is not used of them yet:
// by no more than what is.
bool is_half_used(std::byte* page) {
  constexpr std::size_t small_page = 4096;  // mincore() fills too little where they are larger
  std::array<unsigned char, huge_page / small_page> resident{};
  if (::mincore(page, huge_page, resident.data()) != 0) return false;  // part of it is not mapped
  const auto used =
      std::count_if(resident.begin(), resident.end(), [](unsigned char is) { return is & 1; });
  return static_cast<std::size_t>(used) >= resident.size() / 2;
}

}  // namespace

void RecurringMemory::comes(const void* address, std::size_t bytes, std::uint64_t time) {
  const auto begin = reinterpret_cast<std::uint64_t>(address);
  if (bytes < least_bytes || !is_due(begin, time)) return;
  const Time started = Clock::now();
  put(begin, bytes);
  const Time ended = Clock::now();
  const std::lock_guard lock(mutex_);
  paid_until_ = std::max(paid_until_, ended - memory_of_share) + share * (ended - started);
}

void RecurringMemory::put(std::uint64_t begin, std::size_t bytes) {
  auto* const first = reinterpret_cast<std::byte*>(begin / huge_page * huge_page);
  auto* const last = reinterpret_cast<std::byte*>(round_up(begin + bytes, huge_page));
  std::byte* from = is_half_used(first) ? first : first + huge_page;
  std::byte* until = last;
  if (last - huge_page > first && !is_half_used(last - huge_page)) until -= huge_page;
  if (from >= until) return;
  const std::size_t gained = put_used_on_huge_pages(from, static_cast<std::size_t>(until - from));
  huge_page_bytes_.fetch_add(gained, std::memory_order_relaxed);
  log(LogLevel::debug, "of a tensor of ", bytes, " bytes that comes again, ", gained,
      " bytes lie on huge pages");
}

bool RecurringMemory::is_due(std::uint64_t address, std::uint64_t time) {
  const std::lock_guard lock(mutex_);
  if (tensors_.size() >= most_tensors && !tensors_.contains(address)) tensors_.clear();
  Times& times = tensors_[address];
  if (time == first_time) times = {first_time - 1, first_time};
  if (++times.came < times.next || Clock::now() < paid_until_) return false;
  if (times.next > UINT32_MAX / growth) {
    times = {};  // begins anew before it overflows
  } else {
    times.next *= growth;
  }
  return true;
}

}  // namespace rueda
