// The memory that the double knows: of its devices, and pinned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace rueda::test {

// Addresses of devices lie where no memory of the host can be: touching them ends the process.
inline constexpr std::uint64_t device_tag = 0x4000'0000'0000'0000;

class Memory {
 public:
  struct Range {
    std::size_t bytes = 0;
    int device = -1;  // -1 for pinned memory of the host
    int uses = 0;     // enqueued and not done
    std::shared_ptr<std::byte[]> owned;
  };

  std::uint64_t allocate(std::size_t bytes, int device);
  // False where `address` does not begin an allocation of that kind, or is in use.
  bool free(std::uint64_t address, bool of_device);
  // Frees everything, whatever its state.
  void clear();
  bool pin(std::uint64_t address, std::size_t bytes);
  bool unpin(std::uint64_t address);

  [[nodiscard]] int device_of(std::uint64_t address);  // -2 for memory that is not known
  [[nodiscard]] bool contains(std::uint64_t address, std::size_t bytes);
  [[nodiscard]] bool in_use(std::uint64_t address);
  void change_uses(std::uint64_t address, int by);
  [[nodiscard]] std::size_t allocations();

  // Where the host finds it.
  [[nodiscard]] static std::byte* host_address(std::uint64_t address) {
    return reinterpret_cast<std::byte*>(address & ~device_tag);
  }

 private:
  std::map<std::uint64_t, Range>::iterator find(std::uint64_t address);

  std::mutex mutex_;
  std::map<std::uint64_t, Range> ranges_;
  // Kept, so that no later allocation has an address that may still be in use somewhere.
  std::vector<std::shared_ptr<std::byte[]>> freed_;
};

}  // namespace rueda::test
