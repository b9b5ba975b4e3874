#include "onehost/shared_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "transport/socket.h"

namespace rueda {

namespace {

constexpr std::size_t share_of_addresses = 16;

// Limit on the size of a file or an address space; SIZE_MAX if there is none.
std::size_t limit_of(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  return static_cast<std::size_t>(limit.rlim_cur);
}

UniqueFd open_memory_file() {
  // Some systems allow only files that cannot be executed; older ones do not know the flag.
  constexpr unsigned not_executable = 8;  // MFD_NOEXEC_SEAL
  constexpr unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  UniqueFd fd(::memfd_create("rueda", flags | not_executable));
  if (!fd && errno == EINVAL) fd.reset(::memfd_create("rueda", flags));
  // Otherwise anyone who may look into /proc/<pid>/fd could open it, whatever the user.
  if (fd) ::fchmod(fd.get(), S_IRUSR | S_IWUSR);
  return fd;
}

// Reserves addresses for a mapping of `bytes` that begins at a multiple of a huge page.
std::byte* reserve_addresses(std::size_t bytes) {
  const std::size_t length = bytes + huge_page;
  void* reserved =
      ::mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(reserved);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  auto* const aligned = begin + (round_up(address, huge_page) - address);
  const auto before = static_cast<std::size_t>(aligned - begin);
  if (before > 0) ::munmap(begin, before);
  if (before < huge_page) ::munmap(aligned + bytes, huge_page - before);
  return aligned;
}

// Device and inode number.
using FileIdentity = std::array<std::uint64_t, 2>;

std::optional<FileIdentity> identity_of(int fd) {
  struct stat found{};
  if (::fstat(fd, &found) != 0) return std::nullopt;
  return FileIdentity{found.st_dev, found.st_ino};
}

}  // namespace

Expected<UniqueFd> make_memory_file(std::size_t bytes) {
  // Checked first, because trying would end the process with SIGXFSZ.
  if (bytes > limit_of(RLIMIT_FSIZE)) return system_error("cannot make shared memory", EFBIG);
  UniqueFd fd = open_memory_file();
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return system_error("cannot make shared memory", errno);
  }
  ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return fd;
}

std::size_t sparse_length(std::size_t wanted) {
  const std::size_t allowed =
      std::min(limit_of(RLIMIT_FSIZE), limit_of(RLIMIT_AS) / share_of_addresses);
  return std::min(wanted, allowed) / huge_page * huge_page;
}

bool is_same_file(int one, int other) {
  const auto first = identity_of(one);
  return first && first == identity_of(other);
}

Expected<SharedMapping> SharedMapping::of(int fd, InChildren in_children, Pages pages) {
  struct stat found{};
  if (::fstat(fd, &found) != 0) return system_error("cannot map shared memory", errno);
  const auto bytes = static_cast<std::size_t>(found.st_size);
  std::byte* const place = reserve_addresses(round_up(bytes, small_page));
  if (place == nullptr) return system_error("cannot map shared memory", errno);
  void* const memory =
      ::mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
  if (memory == MAP_FAILED) {
    const int error = errno;
    ::munmap(place, bytes);
    return system_error("cannot map shared memory", error);
  }
  if (pages == Pages::huge) ::madvise(memory, bytes, MADV_HUGEPAGE);
  // Every rank maps the memory of all ranks. A core dump that included it would contain the host's
  // memory once per crashed rank, and writing it would fill the holes with pages.
  ::madvise(memory, bytes, MADV_DONTDUMP);
  if (in_children == InChildren::dropped) ::madvise(memory, bytes, MADV_DONTFORK);
  return SharedMapping(memory, bytes);
}

Expected<std::shared_ptr<const SharedMapping>> SharedMapping::in_common(int fd) {
  static std::mutex mutex;
  // Never destroyed: a thread may map memory of a new world at exit.
  static auto& mappings = *new std::map<FileIdentity, std::weak_ptr<const SharedMapping>>;
  const auto file = identity_of(fd);
  if (!file) return system_error("cannot map shared memory", errno);
  const std::lock_guard lock(mutex);
  // A mapped file exists, so no other file has its identity.
  std::erase_if(mappings, [](const auto& entry) { return entry.second.expired(); });
  auto& known = mappings[*file];
  if (auto mapping = known.lock()) return mapping;
  auto made = of(fd, InChildren::dropped, Pages::any);
  if (!made) return made.status();
  auto mapping = std::make_shared<const SharedMapping>(std::move(made).value());
  known = mapping;
  return mapping;
}

void SharedMapping::make_private(int fd, std::size_t offset, std::size_t bytes) const {
  void* const place = memory_ + offset;
  constexpr int flags = MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED;
  if (::mmap(place, bytes, PROT_READ | PROT_WRITE, flags, fd, static_cast<off_t>(offset)) ==
      MAP_FAILED) {
    ::mprotect(place, bytes, PROT_READ);
    return;
  }
  ::madvise(place, bytes, MADV_DONTDUMP);
}

SharedMapping::~SharedMapping() {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
}

bool populate(std::byte* begin, std::size_t bytes) {
  constexpr int populate_advice = 23;  // MADV_POPULATE_WRITE
  constexpr int max_attempts = 100;    // pages may be busy for a moment
  for (int attempt = 0; attempt < max_attempts; ++attempt) {
    if (::madvise(begin, bytes, populate_advice) == 0) return true;
    if (errno == ENOMEM || errno == EFAULT) return false;
    if (errno != EAGAIN && errno != EINTR) break;
  }
  return true;
}

bool punch_out(std::byte* begin, std::size_t bytes) {
  if (::madvise(begin, bytes, MADV_REMOVE) == 0) return true;
  std::memset(begin, 0, bytes);
  return false;
}

}  // namespace rueda
