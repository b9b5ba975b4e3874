#include "shared_area.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>

namespace rueda_bench {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr std::size_t line = 128;  // two cache lines, which processors like to fetch together
constexpr int words_per_rank = 4;
constexpr auto timeout = std::chrono::minutes(2);

constexpr std::size_t round_up(std::size_t bytes) {
  return (bytes + huge_page - 1) / huge_page * huge_page;
}

// Maps a file where huge pages can begin; MAP_FAILED where that fails.
void* map_aligned(int fd, std::size_t bytes) {
  const std::size_t reserved = bytes + huge_page;
  void* const place = ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) return MAP_FAILED;
  auto* const begin = static_cast<std::byte*>(place);
  const auto address = reinterpret_cast<std::uintptr_t>(place);
  std::byte* const aligned = begin + (round_up(address) - address);
  void* const mapped =
      ::mmap(aligned, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) ::munmap(place, reserved);
  return mapped;  // the rest of the reservation stays: addresses cost nothing
}

}  // namespace

SharedArea::SharedArea(int fd, int ranks) : ranks_(ranks) {
  struct stat status{};
  void* mapped = MAP_FAILED;
  if (::fstat(fd, &status) == 0) {
    bytes_ = static_cast<std::size_t>(status.st_size);
    mapped = map_aligned(fd, bytes_);
  }
  const int error = errno;
  ::close(fd);
  if (mapped == MAP_FAILED)
    throw std::runtime_error(std::string("mapping the shared area: ") + std::strerror(error));
  base_ = static_cast<std::byte*>(mapped);
  // The flags take the first huge page, the ranks' rooms the rest in equal parts.
  const std::size_t parts = bytes_ / huge_page - 1;
  room_bytes_ = parts / static_cast<std::size_t>(ranks) * huge_page;
  ::madvise(base_, bytes_, MADV_HUGEPAGE);
}

SharedArea::~SharedArea() {
  ::munmap(base_, bytes_);
}

std::atomic<std::uint64_t>& SharedArea::word(int rank, int number) const {
  const auto at = static_cast<std::size_t>(rank * words_per_rank + number) * line;
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(base_ + at);
}

std::byte* SharedArea::room(int rank) const {
  return base_ + huge_page + static_cast<std::size_t>(rank) * room_bytes_;
}

void SharedArea::furnish_room(int rank, std::size_t bytes) const {
  constexpr int collapse = 25;  // MADV_COLLAPSE, from Linux 6.1
  const std::size_t whole = round_up(bytes);
  // The kernel collapses only where there is a page already.
  for (std::size_t at = 0; at < whole; at += huge_page) room(rank)[at] = std::byte{};
  ::madvise(room(rank), whole, collapse);
}

void FlagBarrier::wait(int participants) {
  ++sequence_;
  area_.word(rank_, 0).store(sequence_, std::memory_order_release);
  for (int peer = 0; peer < participants; ++peer) {
    if (peer != rank_) await(peer);
  }
}

void FlagBarrier::await(int peer) const {
  const std::atomic<std::uint64_t>& flag = area_.word(peer, 0);
  std::chrono::steady_clock::time_point deadline{};
  constexpr std::uint64_t patient_spins = 1 << 16;  // then others may need the processor
  for (std::uint64_t spins = 1; flag.load(std::memory_order_acquire) < sequence_; ++spins) {
    if (!yields_ && spins < patient_spins) {
      relax();
      continue;
    }
    ::sched_yield();
    if (spins % 1024 != 0) continue;
    const auto now = std::chrono::steady_clock::now();
    if (deadline == std::chrono::steady_clock::time_point{}) deadline = now + timeout;
    if (now > deadline)
      throw std::runtime_error("rank " + std::to_string(peer) +
                               " has not come to the barrier within two minutes");
  }
}

}  // namespace rueda_bench
