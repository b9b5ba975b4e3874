// Counts what application threads do themselves when they start persistent operations.
#pragma once

#include <cstdint>
#include <mutex>
#include <set>

#include "core/counter.h"
#include "transport/transfer_counters.h"

namespace rueda {

class PersistentRuns {
 public:
  // Counters of one operation, written by the thread that starts it: no other thread waits for
  // these cache lines.
  class Counters {
   public:
    // `bytes`: size of the tensor.
    Counters(PersistentRuns& all, std::int64_t bytes);
    ~Counters();
    Counters(const Counters&) = delete;
    Counters& operator=(const Counters&) = delete;

    Counter started;
    Counter completed;
    Counter failed;
    TransferCounters transfers;

   private:
    friend class PersistentRuns;
    PersistentRuns& all_;
    const std::int64_t bytes_;
  };

  // Totals of all operations, including destroyed ones. Bytes moved count those in host memory.
  struct Totals {
    std::int64_t started = 0;
    std::int64_t tensor_bytes = 0;
    std::int64_t completed = 0;
    std::int64_t failed = 0;
    std::int64_t reduced = 0;
    std::int64_t through_kernel = 0;
    std::int64_t packed = 0;

    void add(const Counters& counters);
  };
  [[nodiscard]] Totals totals() const;

 private:
  mutable std::mutex mutex_;
  std::set<const Counters*> open_;
  Totals ended_;
};

}  // namespace rueda
