// What distinguishes the tables of a runtime.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace rueda {

// Any thread may call everything.
class TableNames : public std::enable_shared_from_this<TableNames> {
 public:
  // A number that this rank has not given to a table before.
  [[nodiscard]] std::uint64_t number() {
    const std::lock_guard lock(mutex_);
    return next_++;
  }
  // Takes the name for as long as the result lives; null if it is taken already.
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
