// What a process keeps through all its worlds, one of which follows another: what it has counted,
// and the timeline that it writes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "coordinator/metrics.h"
#include "coordinator/timeline.h"

namespace rueda {

// Any thread may call all of it.
class History {
 public:
  // The counters of one world, which has its own: a counter has one writer, and one world may still
  // end while the next one begins. They belong to the history for as long as they are, and what
  // they have come to then stays.
  class Chapter {
   public:
    Chapter(std::shared_ptr<History> history, const Metrics& metrics);
    ~Chapter();
    Chapter(const Chapter&) = delete;
    Chapter& operator=(const Chapter&) = delete;

   private:
    const std::shared_ptr<History> history_;
    const Metrics& metrics_;
    const int generation_;  // of the process that counts
  };

  History() = default;
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  // By name, of all worlds together: none is ever less than before.
  [[nodiscard]] std::map<std::string, std::int64_t> values() const;
  [[nodiscard]] const std::shared_ptr<Trace>& trace() const { return trace_; }

 private:
  mutable std::mutex mutex_;  // of the next two
  std::set<const Metrics*> open_;
  std::map<std::string, std::int64_t> ended_;
  const std::shared_ptr<Trace> trace_ = std::make_shared<Trace>();
};

}  // namespace rueda
