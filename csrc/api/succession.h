// The worlds of this process after its first, if it was initialised with recovery.
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
  // Starts a runtime in a world that was formed; collective. Throws if one of its ranks fails.
  // `on_failure` and `sets` are for Runtime::start(). The caller that takes the world calls
  // Runtime::take_over().
  using Start = std::function<std::shared_ptr<Runtime>(World world, Bootstrap& bootstrap,
                                                       std::uint64_t epoch, OnFailure on_failure,
                                                       std::shared_ptr<ProcessSets> sets)>;
  // The first world, its number, and its process sets, which later worlds inherit.
  struct First {
    const World& world;
    std::uint64_t epoch = 0;
    std::shared_ptr<ProcessSets> sets;
  };

  // Collective over the ranks of the first world.
  static Expected<std::unique_ptr<Succession>> open(Bootstrap& bootstrap, const First& first,
                                                    const Options& options, Start start,
                                                    Time deadline);
  // To the other ranks, this process has ended. Runtimes that were started may live on, and break.
  ~Succession();
  Succession(const Succession&) = delete;
  Succession& operator=(const Succession&) = delete;

  // For the runtime of the first world.
  [[nodiscard]] OnFailure on_first_failure() const { return failure_of(first_epoch_); }

  struct Next {
    std::shared_ptr<Runtime> runtime;
    Recovery recovery;  // relative to the world taken last
  };
  // Takes the newest world, once one is newer than the one taken last. Errors and exceptions: see
  // Membership::await_newer().
  Expected<Next> take_next(Time deadline);

  // Async-signal-safe.
  void close_after_fork() { membership_->close_after_fork(); }

 private:
  // Where runtimes report that they have ended, as long as `membership` exists.
  struct Reports {
    std::mutex mutex;
    Membership* membership = nullptr;
  };

  Succession(const First& first, const Options& options, Start start);

  [[nodiscard]] OnFailure failure_of(std::uint64_t epoch) const;
  Status enter(World world, Bootstrap& bootstrap, std::uint64_t epoch);

  const Start start_;
  const std::uint64_t first_epoch_;
  const double init_timeout_;  // for entering a world with others, in seconds
  const std::shared_ptr<Reports> reports_ = std::make_shared<Reports>();
  std::shared_ptr<ProcessSets> sets_;  // of the world entered last; used by Membership's thread
  std::mutex mutex_;
  std::shared_ptr<Runtime> next_;  // entered, but not taken yet
  std::uint64_t next_epoch_ = 0;
  std::uint64_t taken_epoch_;
  std::vector<int> taken_members_;
  std::unique_ptr<Membership> membership_;
};

}  // namespace rueda
