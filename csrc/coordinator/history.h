// What a process keeps across its successive worlds: its counters and its timeline.
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

// Thread-safe.
class History {
 public:
  // Adds one world's counters to the history. Each world has its own, because a counter has one
  // writer and a world may still be ending while the next one starts. The history reads them while
  // the chapter lives and keeps their final values afterwards.
  class Chapter {
   public:
    Chapter(std::shared_ptr<History> history, const Metrics& metrics);
    ~Chapter();
    Chapter(const Chapter&) = delete;
    Chapter& operator=(const Chapter&) = delete;

   private:
    const std::shared_ptr<History> history_;
    const Metrics& metrics_;
    const int generation_;  // fork generation of the counting process
  };

  History() = default;
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  // Sums over all worlds, by name. They never decrease.
  [[nodiscard]] std::map<std::string, std::int64_t> values() const;
  [[nodiscard]] const std::shared_ptr<Trace>& trace() const { return trace_; }

 private:
  mutable std::mutex mutex_;  // guards the next two
  std::set<const Metrics*> open_;
  std::map<std::string, std::int64_t> ended_;
  const std::shared_ptr<Trace> trace_ = std::make_shared<Trace>();
};

}  // namespace rueda
