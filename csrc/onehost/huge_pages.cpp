#include "onehost/huge_pages.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>

#include "onehost/shared_mapping.h"

namespace rueda {

namespace {

constexpr int collapse_advice = 25;  // MADV_COLLAPSE, from Linux 6.1
constexpr int patience = 3;          // pages may be busy for a moment

// What this kernel has said so far. One that does not know the advice is not asked again.
enum class Answer { none, granted, refused };
std::atomic<Answer> answer{Answer::none};

// The kernel collapses only where at least one small page exists.
void touch_each(std::byte* begin, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += huge_page) {
    // An addition of nothing, for others may write here at this moment.
    std::atomic_ref(reinterpret_cast<unsigned char&>(begin[at])).fetch_or(0);
  }
}

int collapse(std::byte* begin, std::size_t bytes) {
  return ::madvise(begin, bytes, collapse_advice) == 0 ? 0 : errno;
}

int collapse_patiently(std::byte* begin) {
  int error = 0;
  for (int attempt = 0; attempt < patience; ++attempt) {
    error = collapse(begin, huge_page);
    if (error != EAGAIN && error != EBUSY) break;
  }
  return error;
}

// One page after the other; `error` becomes that of the last one.
std::size_t collapse_each(std::byte* begin, std::size_t bytes, bool passes_holes, int& error) {
  std::size_t gained = 0;
  for (std::size_t at = 0; at < bytes && (passes_holes || error != ENOMEM); at += huge_page) {
    error = collapse_patiently(begin + at);
    if (error == 0) gained += huge_page;
  }
  return gained;
}

}  // namespace

std::size_t put_on_huge_pages(std::byte* begin, std::size_t bytes) {
  if (answer.load(std::memory_order_relaxed) == Answer::refused) return 0;
  touch_each(begin, bytes);
  if (collapse(begin, bytes) == 0) {
    answer.store(Answer::granted, std::memory_order_relaxed);
    return bytes;
  }
  int error = 0;
  const std::size_t gained = collapse_each(begin, bytes, false, error);
  if (gained == 0 && error == EINVAL) {
    Answer expected = Answer::none;
    answer.compare_exchange_strong(expected, Answer::refused, std::memory_order_relaxed);
  }
  return gained;
}

std::size_t put_used_on_huge_pages(std::byte* begin, std::size_t bytes) {
  if (bytes == 0 || answer.load(std::memory_order_relaxed) == Answer::refused) return 0;
  if (collapse(begin, bytes) == 0) return bytes;
  int error = 0;
  return collapse_each(begin, bytes, true, error);
}

}  // namespace rueda
