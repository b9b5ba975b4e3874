// The bootstrap of ranks that are threads.
#include <utility>

#include "core/strings.h"
#include "transport/inproc_state.h"

namespace rueda {

namespace {

class InprocBootstrap final : public Bootstrap {
 public:
  InprocBootstrap(std::shared_ptr<InprocState> state, int rank)
      : state_(std::move(state)), rank_(rank) {}

  std::string_view name() const override { return "inproc"; }
  int rank() const override { return rank_; }
  int size() const override { return state_->size(); }

  Status put(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(state_->mutex);
    if (state_->store.emplace(key, value).second) return {};
    return Status(ErrorCode::initialization, str("key '", key, "' was put twice"));
  }

  Expected<std::string> get(const std::string& key) override {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->store.find(key);
    if (found != state_->store.end()) return found->second;
    return Status(ErrorCode::initialization, str("no rank has put key '", key, "'"));
  }

  Status barrier(Time deadline) override {
    std::unique_lock lock(state_->mutex);
    state_->arrived.insert(rank_);
    if (static_cast<int>(state_->arrived.size()) == size()) {
      state_->arrived.clear();
      ++state_->barriers_passed;
      state_->changed.notify_all();
      return {};
    }
    const std::size_t before = state_->barriers_passed;
    if (state_->changed.wait_until(lock, deadline,
                                   [&] { return state_->barriers_passed != before; })) {
      return {};
    }
    std::vector<int> missing;
    for (int peer = 0; peer < size(); ++peer) {
      if (!state_->arrived.contains(peer)) missing.push_back(peer);
    }
    return Status(ErrorCode::initialization,
                  str("waited for ", describe_ranks(missing), " until the deadline"));
  }

 private:
  const std::shared_ptr<InprocState> state_;
  const int rank_;
};

}  // namespace

std::unique_ptr<Bootstrap> make_inproc_bootstrap(std::shared_ptr<InprocState> state, int rank) {
  return std::make_unique<InprocBootstrap>(std::move(state), rank);
}

}  // namespace rueda
