// How ranks find each other before any transport exists: a small shared key-value store.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.h"
#include "core/status.h"

namespace rueda {

// Every rank calls barrier() the same number of times, in the same order relative to its puts. A
// get() sees everything that any rank put before the last completed barrier(). Keys are written
// once.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  // The rank's name in errors: in a group of some ranks, its rank in the world.
  [[nodiscard]] virtual int world_rank(int rank) const { return rank; }

  virtual Status put(const std::string& key, const std::string& value) = 0;
  virtual Expected<std::string> get(const std::string& key) = 0;
  // ErrorCode::initialization at the deadline, with the missing ranks where they are known.
  virtual Status barrier(Time deadline) = 0;

  // Collective: the value of each rank, by rank. If `own` is an error on any rank, every rank gets
  // an error that names the first such rank, so that all take the same path and none waits. A rank
  // whose error names another rank (`peer`) counts only if all that failed are such. Use each `key`
  // once. Also fails if the ranks do not meet by the deadline.
  [[nodiscard]] Expected<std::vector<std::string>> allgather(const std::string& key,
                                                             const Expected<std::string>& own,
                                                             Time deadline);

  // Collective: ok if `own` is ok on all ranks; otherwise `own` if it names no other rank, or an
  // error as above.
  Status agree(const std::string& key, const Status& own, Time deadline);

  // Every rank calls this right before its last collective step. What the others wait for from then
  // on is done once this rank arrives at that step's barrier. It may exit once it has passed the
  // barrier, and others may notice that before they have passed it themselves.
  virtual void begin_last() {}

  // The secret that the ranks shared before they met; it is never sent over the bootstrap. Empty if
  // none was given, as under MPI.
  [[nodiscard]] virtual std::string secret() const { return {}; }
};

}  // namespace rueda
