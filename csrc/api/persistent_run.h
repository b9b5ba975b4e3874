// What a persistent allreduce does when it is started. Functions throw, like the public ones.
#pragma once

#include <memory>
#include <optional>

#include "core/clock.h"
#include "core/fork.h"
#include "rueda/persistent.h"

namespace rueda {

class PersistentRun {
 public:
  virtual ~PersistentRun() = default;
  // False in a child made by fork(): it lacks what the run uses, so calling anything else here,
  // especially the destructor, would crash.
  [[nodiscard]] bool is_of_this_process() const { return generation_ == fork_generation(); }
  // Throws NotInitializedError in such a child.
  void require_this_process() const;
  // `stream`: of the tensor's device; if not given, the tensor's own.
  void start(std::optional<void*> stream) {
    begin(stream);
    (void)start_until(std::nullopt);
  }
  // The same in parts, for callers that have other work: what start_until() has not finished is
  // done by the next call of it, by done() or by a wait.
  virtual void begin(std::optional<void*> stream) = 0;
  // False at the deadline.
  virtual bool start_until(std::optional<Time> deadline) = 0;
  virtual bool done() = 0;
  void wait() { (void)wait_until(std::nullopt); }
  // False at the deadline.
  virtual bool wait_until(std::optional<Time> deadline) = 0;

 private:
  const int generation_ = fork_generation();
};

using OwnedPersistentRun = std::unique_ptr<PersistentRun, PersistentRunEnd>;

}  // namespace rueda
