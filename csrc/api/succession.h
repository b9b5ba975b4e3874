// The worlds of this process after its first, where it was initialised with recovery.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "coordinator/runtime.h"
#include "membership/membership.h"
#include "rueda/rueda.h"

namespace rueda {

class Succession {
 public:
  using OnFailure = std::function<void(const Status&)>;
  // Starts a runtime in a world that was formed; collective. Throws where one of its ranks does not
  // succeed. `on_failure` is for Runtime::start().
  using Start = std::function<std::shared_ptr<Runtime>(World world, Bootstrap& bootstrap,
                                                       OnFailure on_failure)>;

  // Collective over the ranks of the first world.
  static Expected<std::unique_ptr<Succession>> open(Bootstrap& bootstrap, const World& first,
                                                    const Options& options, Start start,
                                                    Time deadline);
  // Leaves a world that nobody has taken.
  ~Succession();
  Succession(const Succession&) = delete;
  Succession& operator=(const Succession&) = delete;

  // For the runtime of the first world.
  [[nodiscard]] OnFailure on_first_failure() { return failure_of(0); }

  struct Next {
    std::shared_ptr<Runtime> runtime;
    Recovery recovery;  // from the world that was taken last
  };
  // Takes the newest world, once one is newer than that which was taken last. Errors and exceptions
  // of Membership::await_newer().
  Expected<Next> take_next(Time deadline);

  // Async-signal-safe.
  void close_after_fork() { membership_->close_after_fork(); }

 private:
  explicit Succession(Start start);

  OnFailure failure_of(std::uint64_t epoch);
  Status enter(World world, Bootstrap& bootstrap, std::uint64_t epoch);

  const Start start_;
  std::mutex mutex_;
  std::shared_ptr<Runtime> next_;
  std::uint64_t taken_epoch_ = 0;
  std::vector<int> taken_members_;
  std::unique_ptr<Membership> membership_;
};

}  // namespace rueda
