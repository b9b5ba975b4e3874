// Records this rank's most recent operations, and writes them to a file when its world fails:
// `rueda analyze` compares the records of all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "plan/request.h"

namespace rueda {

// Any thread may call everything. Open operations are kept regardless of their age; of those that
// have ended, the most recent.
class FlightRecorder {
 public:
  // Number of an operation; 0: none.
  using Number = std::uint64_t;
  // Why a record is written.
  enum class Occasion : std::uint8_t { request, stall, failure };

  // Records nothing.
  FlightRecorder() = default;
  // Writes rank<rank>.json in `folder`; an existing file is renamed to rank<rank>.previous.json,
  // and rank 0 does so for ranks that this world does not have. If the folder is not writable, an
  // error is logged at once. `capacity`: how many ended operations are kept.
  FlightRecorder(std::string folder, std::size_t capacity, int rank, int size);

  [[nodiscard]] bool is_on() const { return !folder_.empty(); }

  // The members of a process set, as world ranks.
  void know_set(int id, const std::vector<int>& ranks);
  // That set has ended, and its number is not used again. A record tells of the most recent 1,024
  // such sets, so that a job may create and remove sets indefinitely.
  void forget_set(int id);

  // All members of a set have joined: each has skipped different operations, so counting starts
  // again for what is submitted from now on.
  void begin_anew(int set);

  // The rank has submitted it. 0 if nothing is recorded; the functions below then do nothing.
  Number submit(int set, const Request& request, Time when);
  // All ranks have agreed on it, and it is executed.
  void start(Number number);
  void end(Number number, const Status& status);
  // Whether anything of the set is open, or failed because the set ended.
  [[nodiscard]] bool is_cut_short(int set) const;

  // Writes everything to a file that replaces the last one; ErrorCode::initialization if it cannot
  // be written. `why`: the reason given in the file; `lost`: the rank that the world has lost.
  Status write(Occasion occasion, const std::string& why, int lost = -1) const;
  // The same, but logs an error.
  void dump(Occasion occasion, const Status& reason) const;

 private:
  enum class Stage : std::uint8_t { submitted, running, done, failed };
  struct Operation {
    Number number = 0;
    int set = 0;
    int generation = 0;         // how often the set's members had joined
    std::uint64_t of_name = 0;  // counts operations of this name in it, from 1; 0 if unknown
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
  void forget_names(int set);
  [[nodiscard]] std::string text_of(Occasion occasion, const std::string& why, int lost) const;
  void append(std::string& text, const Operation& operation) const;

  std::string folder_;
  std::string path_;
  std::size_t capacity_ = 0;
  int rank_ = 0;
  int size_ = 0;
  mutable std::mutex mutex_;  // protects everything below
  Number last_ = 0;
  std::unordered_map<Number, Operation> open_;
  std::vector<Operation> ended_;  // a ring buffer, once it is full
  std::uint64_t ended_count_ = 0;
  std::map<int, std::vector<int>> sets_;
  std::deque<int> ended_sets_;
  std::map<int, int> generations_;  // by set
  // By set and name: how many were submitted in this generation, including forgotten ones.
  std::map<int, std::unordered_map<std::string, std::uint64_t>> counts_;
  std::size_t name_count_ = 0;
};

}  // namespace rueda
