#include "onehost/memory_transport.h"

#include <new>
#include <utility>
#include <vector>

#include "core/strings.h"

namespace rueda {

namespace {

// Not used by any process set or persistent operation.
constexpr std::uint64_t inbox_key = ~std::uint64_t{1};
constexpr std::uint64_t ring_key(int place) {
  return inbox_key - 1 - static_cast<std::uint64_t>(place);
}

class MemoryTransport final : public RingTransport {
 public:
  MemoryTransport(std::shared_ptr<HostMemory> host, int world_size, const std::vector<int>& ranks,
                  const Inbox& own, std::size_t ring_bytes)
      : RingTransport(host->world_rank(host->rank()), world_size, ranks, own),
        host_(std::move(host)),
        ring_bytes_(ring_bytes) {}

  [[nodiscard]] std::string_view name() const override { return "shm"; }

 private:
  Expected<Outlet> open_outlet(int place) override {
    try {
      std::byte* const inbox = host_->find(place, inbox_key);
      return Outlet{Inbox(inbox),
                    {host_->publish(ring_key(place), ring_bytes_, ring_bytes_), ring_bytes_}};
    } catch (const std::bad_alloc&) {
      return Status(ErrorCode::transport,
                    str("no memory is left on this host for messages from rank ", rank(),
                        " to rank ", host_->world_rank(place)),
                    rank());
    }
  }
  std::span<const std::byte> find_inlet(int place) override {
    return {host_->find(place, ring_key(host_->rank())), ring_bytes_};
  }
  void wake(int place) override { rueda::wake(host_->wake_target(place)); }

  const std::shared_ptr<HostMemory> host_;
  const std::size_t ring_bytes_;
};

}  // namespace

Expected<std::unique_ptr<Transport>> make_memory_transport(const std::shared_ptr<HostMemory>& host,
                                                           int world_size, std::size_t ring_bytes) {
  std::vector<int> ranks;
  for (int place = 0; place < host->size(); ++place) ranks.push_back(host->world_rank(place));
  try {
    const std::size_t bytes = Inbox::bytes(host->size());
    const Inbox own(host->publish(inbox_key, bytes, bytes));
    return std::unique_ptr<Transport>(
        std::make_unique<MemoryTransport>(host, world_size, ranks, own, ring_bytes));
  } catch (const std::bad_alloc&) {
    return Status(ErrorCode::initialization,
                  str("this host's shared memory has no room for the messages of rank ",
                      host->world_rank(host->rank())),
                  host->world_rank(host->rank()));
  }
}

}  // namespace rueda
