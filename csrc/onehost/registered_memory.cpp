#include "onehost/registered_memory.h"

#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "core/available_memory.h"
#include "onehost/huge_pages.h"

namespace rueda {

namespace {

constexpr std::size_t granule = 64;
constexpr std::size_t min_length = std::size_t{64} << 20;
// One rank per processor can map every other rank's memory: half of a process's 47 bits of
// addresses.
constexpr std::size_t addresses_of_all_ranks = std::size_t{64} << 40;
// Freed memory is kept, up to this many bytes and this share of the total: clearing it for reuse is
// faster than getting new pages. The rest goes back to the system.
constexpr std::size_t max_kept = std::size_t{256} << 20;
constexpr std::size_t share_kept = 16;

std::size_t wanted_length() {
  const auto pages = static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES));
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t processors = std::max(1U, std::thread::hardware_concurrency());
  return round_up(std::min(pages * page, addresses_of_all_ranks / processors), huge_page);
}

// The memory of the process `process`, or why it has none. Never freed: tensors may still
// exist while the process ends, and a parent's tensors exist in its child.
struct Made {
  int process;
  Expected<std::unique_ptr<RegisteredMemory>> memory;
  const Made* of_parent;
};
std::atomic<const Made*> newest{nullptr};

Expected<RegisteredMemory*> memory_of(const Made& made) {
  if (!made.memory) return made.memory.status();
  return made.memory.value().get();
}

// Memory that the parent had inherited itself is private already.
void after_fork_in_child() {
  const Made* const made = newest.load(std::memory_order_acquire);
  if (made != nullptr && made->memory) made->memory.value()->make_private();
}

}  // namespace

Expected<RegisteredMemory*> RegisteredMemory::of_process() {
  const int process = ::getpid();
  const Made* found = newest.load(std::memory_order_acquire);
  if (found != nullptr && found->process == process) return memory_of(*found);
  static const int watching = ::pthread_atfork(nullptr, nullptr, after_fork_in_child);
  (void)watching;
  // Lock-free, since a child could inherit a locked lock. A thread that comes second has made
  // sparse memory for nothing.
  auto made = std::make_unique<Made>(Made{process, make(), found});
  if (newest.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) {
    return memory_of(*made.release());
  }
  return memory_of(*found);
}

Expected<std::unique_ptr<RegisteredMemory>> RegisteredMemory::make() {
  Status failed;
  std::size_t length = std::max(sparse_length(wanted_length()), min_length);
  for (; length >= min_length; length = length / 2 / huge_page * huge_page) {
    auto fd = make_memory_file(length);
    if (!fd) {
      failed = fd.status();
      continue;
    }
    auto mapping = SharedMapping::of(fd->get(), SharedMapping::InChildren::kept);
    if (mapping) {
      return std::unique_ptr<RegisteredMemory>(
          new RegisteredMemory(std::move(fd).value(), std::move(mapping).value()));
    }
    failed = mapping.status();
  }
  return Status(ErrorCode::initialization, "there is no registered memory").because(failed);
}

RegisteredMemory::RegisteredMemory(UniqueFd fd, SharedMapping mapping)
    : fd_(std::move(fd)),
      mapping_(std::move(mapping)),
      process_(::getpid()),
      allocated_until_(mapping_.bytes() / huge_page),
      backing_(mapping_.bytes() / huge_page, Backing::none) {
  free_pages_.give({0, mapping_.bytes()});
}

void RegisteredMemory::make_private() {
  if (std::exchange(is_private_, true)) return;
  const std::size_t pages = allocated_until_.size();
  const auto is_allocated = [&](std::size_t page) {
    return allocated_until_[page].load(std::memory_order_acquire) != 0;
  };
  for (std::size_t begin = 0; begin < pages; ++begin) {
    if (!is_allocated(begin)) continue;
    std::size_t end = begin + 1;
    while (end < pages && is_allocated(end)) ++end;
    mapping_.make_private(fd_.get(), begin * huge_page, (end - begin) * huge_page);
    begin = end;
  }
}

bool RegisteredMemory::is_of_this_process() const {
  return ::getpid() == process_;
}

std::shared_ptr<std::byte[]> RegisteredMemory::allocate(std::size_t bytes) {
  if (!is_of_this_process() || bytes > mapping_.bytes()) return nullptr;
  const bool is_large = bytes >= huge_page;
  const std::size_t taken =
      is_large ? round_up(bytes, huge_page) : round_up(std::max<std::size_t>(bytes, 1), granule);
  std::byte* const memory = is_large ? allocate_large(bytes) : allocate_small(taken);
  if (memory == nullptr) return nullptr;
  return {memory, [this, taken, is_large](std::byte* freed) {
            if (!is_of_this_process()) return;  // it still belongs to the parent
            is_large ? free_large(freed, taken) : free_small(freed, taken);
          }};
}

std::byte* RegisteredMemory::allocate_large(std::size_t bytes) {
  std::optional<FreeRange> range;
  {
    const std::lock_guard lock(mutex_);
    range = take_pages(bytes);
  }
  if (!range) return nullptr;
  if (!prepare(*range, bytes)) {
    const std::lock_guard lock(mutex_);
    drop_pages(*range);
    return nullptr;
  }
  mark_allocated(*range);
  return mapping_.memory() + range->begin;
}

// Zeroes and populates the first `bytes` of the range; false if out of memory.
bool RegisteredMemory::prepare(FreeRange range, std::size_t bytes) {
  const std::uint64_t end = range.begin + round_up(bytes, small_page);
  // Rather than fill what is left with the part of a tensor that does not fit.
  if (!fits_within_limits(without_memory(range))) return false;
  if (!clear({range.begin, end})) return false;
  // A last huge page of which little is used gets small pages.
  const bool uses_last = range.length() - bytes <= huge_page / 2;
  const std::uint64_t last = range.end - huge_page;
  if (!back({range.begin, uses_last ? range.end : last})) return false;
  if (backing(last) != Backing::none) return true;
  if (memory_step(end - last) < end - last) return false;
  backing(last) = end - last < huge_page ? Backing::partial : Backing::small;
  return populate(mapping_.memory() + last, end - last);
}

std::byte* RegisteredMemory::allocate_small(std::size_t bytes) {
  std::optional<std::uint64_t> begin;
  {
    const std::lock_guard lock(mutex_);
    begin = free_pieces_.take(bytes, granule);
    if (!begin) {
      const auto page = take_pages(huge_page);
      if (!page) return nullptr;
      if (!back(*page)) {
        drop_pages(*page);
        return nullptr;
      }
      mark_allocated(*page);
      free_pieces_.give(*page);
      begin = free_pieces_.take(bytes, granule);
    }
  }
  std::byte* const memory = mapping_.memory() + *begin;
  std::memset(memory, 0, bytes);
  return memory;
}

void RegisteredMemory::free_large(std::byte* memory, std::size_t bytes) {
  const auto begin = static_cast<std::uint64_t>(memory - mapping_.memory());
  const FreeRange range{begin, begin + bytes};
  mark_free(range);
  const std::lock_guard lock(mutex_);
  give_pages(range);
}

void RegisteredMemory::free_small(std::byte* memory, std::size_t bytes) {
  const auto begin = static_cast<std::uint64_t>(memory - mapping_.memory());
  const std::lock_guard lock(mutex_);
  const FreeRange free = free_pieces_.give({begin, begin + bytes});
  if (free.length() < huge_page) return;
  free_pieces_.take_whole(free);
  mark_free(free);
  give_pages(free);
}

std::optional<FreeRange> RegisteredMemory::take_pages(std::size_t bytes) {
  const std::size_t length = round_up(bytes, huge_page);
  const auto begin = free_pages_.take(length, huge_page);
  if (!begin) return std::nullopt;
  const FreeRange range{*begin, *begin + length};
  for (std::uint64_t at = range.begin; at < range.end; at += huge_page) {
    if (backing(at) != Backing::none) kept_bytes_ -= huge_page;
  }
  return range;
}

void RegisteredMemory::give_pages(FreeRange range) {
  const std::size_t may_keep = std::min(max_kept, bytes() / share_kept);
  if (kept_bytes_ + range.length() > may_keep) return drop_pages(range);
  for (std::uint64_t at = range.begin; at < range.end; at += huge_page) {
    if (backing(at) != Backing::none) kept_bytes_ += huge_page;
  }
  free_pages_.give(range);
}

// Returns the memory behind the pages to the system.
void RegisteredMemory::drop_pages(FreeRange range) {
  const bool is_gone = punch_out(mapping_.memory() + range.begin, range.length());
  for (std::uint64_t at = range.begin; at < range.end; at += huge_page) {
    if (is_gone && backing(at) == Backing::huge) {
      huge_pages_.fetch_sub(1, std::memory_order_relaxed);
    }
    if (is_gone) backing(at) = Backing::none;
    if (backing(at) != Backing::none) kept_bytes_ += huge_page;
  }
  free_pages_.give(range);
}

void RegisteredMemory::mark_allocated(FreeRange range) {
  const auto end = static_cast<std::uint32_t>(range.end / huge_page);
  for (std::uint64_t at = range.begin; at < range.end; at += huge_page) {
    allocated_until_[at / huge_page].store(end, std::memory_order_release);
  }
}

void RegisteredMemory::mark_free(FreeRange range) {
  for (std::uint64_t at = range.begin; at < range.end; at += huge_page) {
    allocated_until_[at / huge_page].store(0, std::memory_order_release);
  }
}

// Zeroes what was used before. The last page of an allocation may be populated only in part.
bool RegisteredMemory::clear(FreeRange range) {
  for (std::uint64_t at = range.begin; at < range.end; at += huge_page) {
    std::byte* const begin = mapping_.memory() + at;
    const std::size_t bytes = std::min<std::size_t>(huge_page, range.end - at);
    if (backing(at) == Backing::none) continue;
    if (backing(at) == Backing::partial && memory_step(bytes) < bytes) return false;
    if (backing(at) != Backing::huge && !populate(begin, bytes)) return false;
    if (backing(at) == Backing::partial && bytes == huge_page) backing(at) = Backing::small;
    std::memset(begin, 0, bytes);
  }
  return true;
}

// Populates everything not yet on huge pages, in as few steps as possible, with huge pages if the
// kernel provides them. False: out of memory.
bool RegisteredMemory::back(FreeRange range) {
  for (std::uint64_t begin = range.begin; begin < range.end;) {
    std::uint64_t end = begin;
    while (end < range.end && backing(end) != Backing::huge) end += huge_page;
    if (begin == end) {
      begin += huge_page;
      continue;
    }
    if (const std::size_t missing = without_memory({begin, end}); missing > 0) {
      const std::size_t step = memory_step(missing);
      if (step == 0) return false;
      end = std::min(end, begin + round_up(step, huge_page));
    }
    const std::size_t length = end - begin;
    const std::size_t gained = put_on_huge_pages(mapping_.memory() + begin, length);
    // If only some pages were granted, it is unknown which; the next owner asks again.
    const bool has_all = gained == length;
    const bool has_memory = has_all || populate(mapping_.memory() + begin, length);
    for (; begin < end; begin += huge_page) {
      backing(begin) = has_all ? Backing::huge : Backing::small;
    }
    if (has_all) huge_pages_.fetch_add(gained / huge_page, std::memory_order_relaxed);
    if (!has_memory) return false;
  }
  return true;
}

std::size_t RegisteredMemory::without_memory(FreeRange range) const {
  const auto first = backing_.begin() + static_cast<std::ptrdiff_t>(range.begin / huge_page);
  const auto last = backing_.begin() + static_cast<std::ptrdiff_t>(range.end / huge_page);
  const auto pages = std::count_if(first, last, [](Backing backing) {
    return backing == Backing::none || backing == Backing::partial;
  });
  return static_cast<std::size_t>(pages) * huge_page;
}

}  // namespace rueda
