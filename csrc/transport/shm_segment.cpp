#include "transport/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "transport/socket.h"

namespace rueda {

namespace {

constexpr std::size_t page = 4096;

std::size_t control_bytes(int size) {
  const auto ranks = static_cast<std::size_t>(size);
  const std::size_t needed = ranks * sizeof(SleepFlag) + ranks * ranks * sizeof(RingControl);
  return (needed + page - 1) / page * page;
}

std::size_t total_bytes(int size, std::size_t ring_bytes) {
  const auto ranks = static_cast<std::size_t>(size);
  return control_bytes(size) + ranks * ranks * ring_bytes;
}

}  // namespace

ShmSegment::ShmSegment(UniqueFd fd, void* memory, int size, std::size_t ring_bytes)
    : fd_(std::move(fd)),
      memory_(static_cast<std::byte*>(memory)),
      size_(size),
      ring_bytes_(ring_bytes) {}

Expected<std::shared_ptr<ShmSegment>> ShmSegment::create(int size, std::size_t ring_bytes) {
  UniqueFd fd(::memfd_create("rueda", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return system_error("cannot make shared memory", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(total_bytes(size, ring_bytes))) != 0) {
    return system_error("cannot make shared memory", errno);
  }
  // So that no access can ever lie beyond its end.
  ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return open(std::move(fd), size, ring_bytes);
}

Expected<std::shared_ptr<ShmSegment>> ShmSegment::open(UniqueFd fd, int size,
                                                       std::size_t ring_bytes) {
  const std::size_t length = total_bytes(size, ring_bytes);
  struct stat found{};
  if (::fstat(fd.get(), &found) != 0 || static_cast<std::size_t>(found.st_size) != length) {
    return Status(ErrorCode::transport, "the shared memory has not the expected size");
  }
  void* memory =
      ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (memory == MAP_FAILED) return system_error("cannot map shared memory", errno);
  ::madvise(memory, length,
            MADV_DONTFORK);  // a child is not a rank, and would only keep the memory alive
  // A core file with it would be as long as the rings of all ranks.
  ::madvise(memory, length, MADV_DONTDUMP);
  return std::shared_ptr<ShmSegment>(new ShmSegment(std::move(fd), memory, size, ring_bytes));
}

ShmSegment::~ShmSegment() {
  ::munmap(memory_, total_bytes(size_, ring_bytes_));
}

SleepFlag& ShmSegment::flag(int rank) const {
  return reinterpret_cast<SleepFlag*>(memory_)[rank];
}

RingControl& ShmSegment::control(int from, int to) const {
  auto* first =
      reinterpret_cast<RingControl*>(memory_ + static_cast<std::size_t>(size_) * sizeof(SleepFlag));
  // Those that one rank polls lie side by side.
  return first[to * size_ + from];
}

std::byte* ShmSegment::bytes(int from, int to) const {
  const auto index = static_cast<std::size_t>(to) * static_cast<std::size_t>(size_) +
                     static_cast<std::size_t>(from);
  return memory_ + control_bytes(size_) + index * ring_bytes_;
}

}  // namespace rueda
