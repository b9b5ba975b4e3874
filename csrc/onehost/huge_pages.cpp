#include "onehost/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>

#include "onehost/shared_mapping.h"

namespace rueda {

namespace {

constexpr int collapse_advice = 25;  // MADV_COLLAPSE, from Linux 6.1
constexpr int max_attempts = 3;      // pages may be busy for a moment

// What this kernel has answered so far. One that does not know the advice is not asked again.
enum class Answer { none, granted, refused };
std::atomic<Answer> answer{Answer::none};

// The kernel collapses only if at least one small page exists. False: out of memory.
bool populate_each(std::byte* begin, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += huge_page) {
    if (!populate(begin + at, small_page)) return false;
  }
  return true;
}

// Smaller tensors gain nothing.
constexpr std::size_t min_tensor = 64 << 10;

// So that memory which is partly unused at most doubles.
bool is_half_used(std::byte* page) {
  constexpr std::size_t small_page = 4096;  // with larger pages, mincore() fills fewer
  std::array<unsigned char, huge_page / small_page> resident{};
  if (::mincore(page, huge_page, resident.data()) != 0) return false;  // part of it is not mapped
  const auto used =
      std::count_if(resident.begin(), resident.end(), [](unsigned char is) { return is & 1; });
  return static_cast<std::size_t>(used) >= resident.size() / 2;
}

int collapse(std::byte* begin, std::size_t bytes) {
  return ::madvise(begin, bytes, collapse_advice) == 0 ? 0 : errno;
}

int collapse_patiently(std::byte* begin) {
  int error = 0;
  for (int attempt = 0; attempt < max_attempts; ++attempt) {
    error = collapse(begin, huge_page);
    if (error != EAGAIN && error != EBUSY) break;
  }
  return error;
}

// Collapses page by page until memory runs out. `error` becomes that of the last page.
std::size_t collapse_each(std::byte* begin, std::size_t bytes, int& error) {
  std::size_t gained = 0;
  for (std::size_t at = 0; at < bytes && error != ENOMEM; at += huge_page) {
    error = collapse_patiently(begin + at);
    if (error == 0) gained += huge_page;
  }
  return gained;
}

}  // namespace

std::size_t put_on_huge_pages(std::byte* begin, std::size_t bytes) {
  if (answer.load(std::memory_order_relaxed) == Answer::refused) return 0;
  if (!populate_each(begin, bytes)) return 0;
  if (collapse(begin, bytes) == 0) {
    answer.store(Answer::granted, std::memory_order_relaxed);
    return bytes;
  }
  int error = 0;
  const std::size_t gained = collapse_each(begin, bytes, error);
  if (gained == 0 && error == EINVAL) {
    Answer expected = Answer::none;
    answer.compare_exchange_strong(expected, Answer::refused, std::memory_order_relaxed);
  }
  return gained;
}

std::size_t put_tensor_on_huge_pages(const void* tensor, std::size_t bytes) {
  if (bytes < min_tensor || answer.load(std::memory_order_relaxed) == Answer::refused) return 0;
  const auto address = reinterpret_cast<std::uint64_t>(tensor);
  auto* const first = reinterpret_cast<std::byte*>(address / huge_page * huge_page);
  auto* const last = reinterpret_cast<std::byte*>(round_up(address + bytes, huge_page));
  std::byte* const begin = is_half_used(first) ? first : first + huge_page;
  std::byte* end = last;
  if (last - huge_page > first && !is_half_used(last - huge_page)) end -= huge_page;
  if (begin >= end) return 0;
  const auto length = static_cast<std::size_t>(end - begin);
  if (collapse(begin, length) == 0) return length;
  int error = 0;
  return collapse_each(begin, length, error);
}

}  // namespace rueda
