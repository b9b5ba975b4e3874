// Remembers what this rank did last, operation by operation, and writes it down when its world
// fails: `rueda analyze` compares the records of all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "plan/request.h"

namespace rueda {

// Any thread may call all of it. What is open is remembered however long ago it began; of what has
// ended, the last operations.
class FlightRecorder {
 public:
  // Of an operation; 0 is none.
  using Number = std::uint64_t;
  // What a record is written upon.
  enum class Occasion : std::uint8_t { request, stall, failure };

  // Records nothing.
  FlightRecorder() = default;
  // `folder` gets rank<rank>.json; one that is there becomes rank<rank>.previous.json, as rank 0
  // does with those of ranks that this world does not have. Where the folder cannot be written, an
  // error is logged at once. `capacity`: how many operations that have ended are remembered.
  FlightRecorder(std::string folder, std::size_t capacity, int rank, int size);

  [[nodiscard]] bool is_on() const { return !folder_.empty(); }

  // The members of a process set, as world ranks.
  void know_set(int id, const std::vector<int>& ranks);

  // All members of a set have joined: each has sat out other operations than the others, so what is
  // submitted from now on is counted anew.
  void begin_anew(int set);

  // The rank wants it. 0 where nothing is recorded, and the functions below then do nothing.
  Number submit(int set, const Request& request, Time when);
  // All ranks have agreed on it, and it runs.
  void start(Number number);
  void end(Number number, const Status& status);
  // Whether anything of the set is open, or has failed because it has ended.
  [[nodiscard]] bool is_cut_short(int set) const;

  // Writes all of it as a file that replaces the last one. initialization where it cannot be
  // written. `why` is the reason that the file gives, `lost` the rank that the world has lost.
  Status write(Occasion occasion, const std::string& why, int lost = -1) const;
  // The same, and an error is logged.
  void dump(Occasion occasion, const Status& reason) const;

 private:
  enum class Stage : std::uint8_t { submitted, running, done, failed };
  struct Operation {
    Number number = 0;
    int set = 0;
    int generation = 0;         // of the set: how often its members had joined
    std::uint64_t of_name = 0;  // counts those of this name in it, from 1; 0 where unknown
    Request request;
    Time submitted{};
    Time started{};
    Time ended{};
    Stage stage = Stage::submitted;
    ErrorCode code = ErrorCode::ok;
    std::string error;
  };

  // Under mutex_.
  std::uint64_t count(int set, const std::string& name);
  [[nodiscard]] std::string text_of(Occasion occasion, const std::string& why, int lost) const;
  void append(std::string& text, const Operation& operation) const;

  std::string folder_;
  std::string path_;
  std::size_t capacity_ = 0;
  int rank_ = 0;
  int size_ = 0;
  mutable std::mutex mutex_;  // of all below
  Number last_ = 0;
  std::unordered_map<Number, Operation> open_;
  std::vector<Operation> ended_;  // a ring, once it is full
  std::uint64_t ended_count_ = 0;
  std::map<int, std::vector<int>> sets_;
  std::map<int, int> generations_;  // by set
  // By set and name: how many were submitted in this generation, also those that are forgotten.
  std::map<int, std::unordered_map<std::string, std::uint64_t>> counts_;
  std::size_t name_count_ = 0;
};

}  // namespace rueda
