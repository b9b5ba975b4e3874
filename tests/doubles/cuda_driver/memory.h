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
  // Of memory that is allocated and freed in the order of streams; other memory is always there.
  enum class Life {
    promised,  // the stream has not come to its allocation
    there,
    given_up,  // freed, but the stream has not come there
  };
  struct Range {
    std::size_t bytes = 0;
    int device = -1;  // -1 for pinned memory of the host
    int uses = 0;     // enqueued and not done
    std::shared_ptr<std::byte[]> owned = nullptr;
    std::uint64_t pool = 0;  // 0 for memory without a stream
    Life life = Life::there;
  };

  std::uint64_t allocate(std::size_t bytes, int device);
  // False where `address` does not begin an allocation of that kind, or is in use.
  bool free(std::uint64_t address, bool of_device);
  // Of a pool: the first half when the call is made, the second when the stream comes to it. What
  // is enqueued between the halves of a free, by any stream, is refused. False as of free().
  std::uint64_t promise(std::size_t bytes, int device, std::uint64_t pool);
  void fulfil(std::uint64_t address);
  bool give_up(std::uint64_t address);
  bool end(std::uint64_t address);
  // Frees everything, whatever its state.
  void clear();
  bool pin(std::uint64_t address, std::size_t bytes);
  bool unpin(std::uint64_t address);

  [[nodiscard]] int device_of(std::uint64_t address);  // -2 for memory that is not known
  // Whether work on it may be enqueued.
  [[nodiscard]] bool contains(std::uint64_t address, std::size_t bytes);
  // Whether a stream that comes to it now finds it.
  [[nodiscard]] bool is_there(std::uint64_t address, std::size_t bytes);
  [[nodiscard]] bool in_use(std::uint64_t address);
  void change_uses(std::uint64_t address, int by);
  [[nodiscard]] std::size_t allocations();  // of devices, but for those that have been given up

  // Where the host finds it.
  [[nodiscard]] static std::byte* host_address(std::uint64_t address) {
    return reinterpret_cast<std::byte*>(address & ~device_tag);
  }

 private:
  using Place = std::map<std::uint64_t, Range>::iterator;
  Place find(std::uint64_t address);
  std::uint64_t add(Range range);
  // Whoever still reads it finds nonsense.
  void retire(Place range);

  std::mutex mutex_;
  std::map<std::uint64_t, Range> ranges_;
  // Kept, so that no later allocation has an address that may still be in use somewhere.
  std::vector<std::shared_ptr<std::byte[]>> freed_;
};

}  // namespace rueda::test
