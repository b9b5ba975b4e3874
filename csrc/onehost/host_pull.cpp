#include "onehost/host_pull.h"

#include <algorithm>
#include <cstring>

namespace rueda {

HostPull::HostPull(HostChannel& channel, const HostPolicy& policy, const std::byte* data,
                   std::size_t bytes, std::vector<std::int64_t> numbers, Plan plan, Begin begin)
    : HostCollective(channel, policy),
      data_(data),
      bytes_(bytes),
      numbers_(std::move(numbers)),
      plan_(std::move(plan)) {
  if (data != nullptr) {
    reach_ = bytes <= policy_.flat_limit ? Reach{Place::slot, 0}
                                         : Reach::of(channel_.host(), data, bytes);
  }
  if (begin == Begin::now) start();
}

void HostPull::prepare() {
  const Exposure exposure{reach_.where, 0, reach_.place, Place::nothing};
  std::memcpy(channel_.memory().line(), &exposure, sizeof exposure);
  if (reach_.place == Place::slot && bytes_ > 0) {
    if (!channel_.memory().populate_slot(bytes_)) return void(status_ = no_memory());
    std::memcpy(channel_.memory().slot(), data_, bytes_);
  }
  if (!numbers_.empty()) {
    if (!channel_.memory().populate_table()) return void(status_ = no_memory());
    std::memcpy(channel_.memory().table(), numbers_.data(),
                numbers_.size() * sizeof numbers_.front());
  }
}

Exposure HostPull::exposure_of(int member) const {
  Exposure exposure;
  std::memcpy(&exposure, channel_.memory().line_of(member), sizeof exposure);
  return exposure;
}

std::int64_t HostPull::number_of(int member, int index) const {
  std::int64_t number = 0;
  std::memcpy(&number,
              channel_.memory().table_of(member) + static_cast<std::size_t>(index) * sizeof number,
              sizeof number);
  return number;
}

bool HostPull::shares_tensors() const {
  for (int member = 0; member < size(); ++member) {
    const Place place = exposure_of(member).input_place;
    if (place == Place::registered || place == Place::address) return true;
  }
  return false;
}

HostCollective::Work HostPull::work() {
  if (!started_) {
    started_ = true;
    transfers_ = plan_(*this);
  }
  std::size_t budget = policy_.chunk;
  while (next_ < transfers_.size() && status_.ok() && budget > 0) {
    const Transfer& transfer = transfers_[next_];
    const std::size_t bytes = std::min(budget, transfer.bytes - taken_);
    status_ = take(transfer, taken_, bytes);
    budget -= bytes;
    taken_ += bytes;
    if (taken_ < transfer.bytes) continue;
    ++next_;
    taken_ = 0;
  }
  return next_ < transfers_.size() && status_.ok() ? Work::more : Work::done;
}

Status HostPull::take(const Transfer& transfer, std::size_t done, std::size_t bytes) {
  if (bytes == 0) return {};
  std::byte* target = transfer.target + done;
  const std::size_t offset = transfer.offset + done;
  if (transfer.member == rank()) {
    std::memcpy(target, data_ + offset, bytes);
    return {};
  }
  traffic_.taken += static_cast<std::int64_t>(bytes);
  const Exposure exposure = exposure_of(transfer.member);
  if (exposure.input_place == Place::address) traffic_.kernel += static_cast<std::int64_t>(bytes);
  if (exposure.input_place == Place::slot) {
    std::memcpy(target, channel_.memory().slot_of(transfer.member) + offset, bytes);
    return {};
  }
  const Reach reach = Reach{exposure.input_place, exposure.input}.at(offset);
  return pull(channel_.host(), channel_.host_rank(transfer.member), reach, target, bytes);
}

}  // namespace rueda
