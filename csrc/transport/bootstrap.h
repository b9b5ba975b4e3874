// How ranks find each other before any transport exists: a small shared key-value store.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.h"
#include "core/status.h"

namespace rueda {

// Every rank calls barrier() the same number of times, in the same order relative to its puts:
// a get() sees everything that any rank put before the last barrier() that has completed.
// Keys are written once.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  // What a rank is called in errors: in a group of some ranks, its rank in the world.
  [[nodiscard]] virtual int world_rank(int rank) const { return rank; }

  virtual Status put(const std::string& key, const std::string& value) = 0;
  virtual Expected<std::string> get(const std::string& key) = 0;
  // ErrorCode::initialization, saying which ranks are missing where that is known, at the deadline.
  virtual Status barrier(Time deadline) = 0;

  // Collective: the value of each rank, by rank. Where `own` is an error on any rank, every rank
  // gets an error that names the first such rank, so that all go on alike and none waits. Each
  // `key` serves once. Another error where the ranks do not meet until the deadline.
  [[nodiscard]] Expected<std::vector<std::string>> allgather(const std::string& key,
                                                             const Expected<std::string>& own,
                                                             Time deadline);

  // Collective: ok where `own` is on all ranks; an error as above where it is not.
  Status agree(const std::string& key, const Status& own, Time deadline);

  // Called by every rank right before what it does last together with the others: what they wait
  // for from then on it has done once it has come to that barrier, and it may end once it has
  // passed it, which others may notice before they have passed it themselves.
  virtual void begin_last() {}

  // What the ranks knew in common before they met, and never send over the bootstrap; empty where
  // nothing was given, as under MPI.
  [[nodiscard]] virtual std::string secret() const { return {}; }
};

}  // namespace rueda
