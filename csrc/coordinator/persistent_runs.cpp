#include "coordinator/persistent_runs.h"

namespace rueda {

PersistentRuns::Counters::Counters(PersistentRuns& all, std::int64_t bytes)
    : all_(all), bytes_(bytes) {
  const std::lock_guard lock(all_.mutex_);
  all_.open_.insert(this);
}

PersistentRuns::Counters::~Counters() {
  const std::lock_guard lock(all_.mutex_);
  all_.open_.erase(this);
  all_.ended_.add(*this);
}

void PersistentRuns::Totals::add(const Counters& counters) {
  started += counters.started.get();
  tensor_bytes += counters.started.get() * counters.bytes_;
  completed += counters.completed.get();
  failed += counters.failed.get();
  reduced += counters.transfers.bytes_reduced.get();
  through_kernel += counters.transfers.bytes_through_kernel.get();
  packed += counters.transfers.bytes_packed.get();
}

PersistentRuns::Totals PersistentRuns::totals() const {
  const std::lock_guard lock(mutex_);
  Totals totals = ended_;
  for (const Counters* counters : open_) totals.add(*counters);
  return totals;
}

}  // namespace rueda
