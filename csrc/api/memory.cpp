#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "api/current_runtime.h"
#include "core/available_memory.h"
#include "core/strings.h"
#include "onehost/huge_pages.h"
#include "onehost/registered_memory.h"
#include "rueda/rueda.h"

namespace rueda {

namespace {

constexpr std::align_val_t alignment{64};

// Smaller allocations do not check the process's limits.
constexpr std::size_t small_enough = std::size_t{1} << 20;

// As for every object.
constexpr auto largest = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());

class NoMemory final : public std::bad_alloc {
 public:
  explicit NoMemory(std::string text) : text_(std::move(text)) {}
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }

 private:
  const std::string text_;
};

std::string no_room_for(std::size_t bytes) {
  const auto mebibytes = [](std::int64_t number) { return number >> 20; };
  return str("no memory for ", mebibytes(static_cast<std::int64_t>(bytes)),
             " MiB: the limit of this process's control group leaves ",
             mebibytes(memory_within_limits().value_or(0)), " MiB, of which ",
             mebibytes(memory_to_spare()), " are kept for other uses");
}

// Zeroes the memory in steps within the limits of the process's control group, beyond which the
// kernel would kill it. False: they leave no room.
bool zero_within_limits(std::byte* memory, std::size_t bytes) {
  while (bytes > 0) {
    const std::size_t step = bytes < small_enough ? bytes : memory_step(bytes);
    if (step == 0) return false;
    std::memset(memory, 0, step);
    memory += step;
    bytes -= step;
  }
  return true;
}

// Ordinary memory: tensors in it work as well, only more slowly.
std::shared_ptr<std::byte[]> allocate_ordinary(std::size_t bytes) {
  if (bytes >= small_enough && !fits_within_limits(bytes)) throw NoMemory(no_room_for(bytes));
  auto* const memory = static_cast<std::byte*>(::operator new[](bytes == 0 ? 1 : bytes, alignment));
  std::shared_ptr<std::byte[]> result(
      memory, [](std::byte* freed) { ::operator delete[](freed, alignment); });
  if (!zero_within_limits(memory, bytes)) throw NoMemory(no_room_for(bytes));
  return result;
}

}  // namespace

std::shared_ptr<std::byte[]> allocate(std::size_t bytes) {
  // Rounded up to whole lines, the largest of these would be none at all.
  if (bytes > largest) {
    throw NoMemory(str("no memory for ", bytes, " bytes: more than can be addressed"));
  }
  if (const auto registered = RegisteredMemory::of_process()) {
    if (auto memory = registered.value()->allocate(bytes)) return memory;
  }
  return allocate_ordinary(bytes);
}

std::size_t settle_tensor(const void* tensor, std::size_t bytes, ProcessSet process_set) {
  const auto runtime = runtime_of(process_set).runtime;
  const Epoch& epoch = runtime->epoch();
  const auto& memory = epoch.layout().host.memory();
  if (!memory || !memory->has_direct_access()) return 0;
  if (!epoch.algorithms().host_policy().huge_pages) return 0;
  if (memory->registered(tensor, bytes)) return 0;
  return put_tensor_on_huge_pages(tensor, bytes);
}

bool has_direct_access() {
  const auto runtime = current_runtime();
  const HostGroup& host = runtime->epoch().layout().host;
  return host.is_world(runtime->topology().size) && host.memory()->has_direct_access();
}

}  // namespace rueda
