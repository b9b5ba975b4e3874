#include "backend/device_result.h"

#include <utility>

namespace rueda {

namespace {

struct Owner {
  std::shared_ptr<DeviceResult> result;
  void operator()(std::byte*) { result.reset(); }
};

}  // namespace

std::shared_ptr<std::byte[]> memory_of(std::shared_ptr<DeviceResult> result, std::byte* data) {
  return {data, Owner{std::move(result)}};
}

DeviceResult* device_result_of(const std::shared_ptr<std::byte[]>& memory) {
  const Owner* owner = std::get_deleter<Owner>(memory);
  return owner == nullptr ? nullptr : owner->result.get();
}

}  // namespace rueda
