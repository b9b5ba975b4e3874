// What the tables of a runtime are told apart by.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace rueda {

// Any thread may call anything.
class TableNames : public std::enable_shared_from_this<TableNames> {
 public:
  // A number that this rank has given to no table yet.
  [[nodiscard]] std::uint64_t number() {
    const std::lock_guard lock(mutex_);
    return next_++;
  }
  // The name is taken while what is returned lives; null where it is already.
  [[nodiscard]] std::shared_ptr<void> take(int set_id, const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto [placed, is_new] = taken_.emplace(set_id, name);
    if (!is_new) return nullptr;
    return {static_cast<void*>(this), [names = shared_from_this(), key = *placed](void*) {
              const std::lock_guard release(names->mutex_);
              names->taken_.erase(key);
            }};
  }

 private:
  std::mutex mutex_;
  std::uint64_t next_ = 0;
  std::set<std::pair<int, std::string>> taken_;
};

}  // namespace rueda
