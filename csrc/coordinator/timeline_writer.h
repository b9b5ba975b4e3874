// How what happened to tensors is written down: one writer for each format of a timeline.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "backend/backend.h"
#include "coordinator/trace_file.h"
#include "core/clock.h"
#include "plan/request.h"
#include "rueda/rueda.h"

namespace rueda {

struct TimelineStyle {
  TimelineFormat format = TimelineFormat::rueda;
  bool mark_cycles = false;

  bool operator==(const TimelineStyle&) const = default;
};

// A world that takes the place of another one: its number, and this process in it.
struct WorldMark {
  std::uint64_t epoch = 0;
  int rank = 0;
  int size = 1;
};

// What a writer is told, each rank of what it sees itself, in the order in which it sees it.
// Tensors are told apart by their process set and name.
class TimelineWriter {
 public:
  // A tensor's way until all ranks had agreed on it.
  struct Wait {
    Time submitted;
    Time taken;  // by whoever drives the engine
    Time agreed;
  };

  virtual ~TimelineWriter() = default;

  // World ranks have submitted it, as far as this one has heard; not where a plan is replayed.
  virtual void ready(int set, const Request& request, std::span<const int> ranks, Time when) = 0;
  // It runs. Without a wait where this rank has joined.
  virtual void started(int set, const Request& request, const std::optional<Wait>& wait,
                       Time when) = 0;
  virtual void ended(int set, const Request& request, Time begin, Time end,
                     std::span<const Operation::Phase> phases) = 0;
  // It was answered without running: with an error, or because nothing is to be moved.
  virtual void answered(int set, const std::string& name, Time when) = 0;
  // Ranks have been waited for too long.
  virtual void stalled(int set, const std::string& name, Time when) = 0;
  // What has been agreed on together begins.
  virtual void cycle(Time when) = 0;
  // All that follows is of another world. What was under way in the one before has ended.
  virtual void world(const WorldMark& mark, Time when) = 0;
};

// Writes what identifies the file at once; `file` is open and outlives the writer. `rank`: in the
// world that there is now; in the file the process is known by it in later ones, too.
[[nodiscard]] std::unique_ptr<TimelineWriter> make_timeline_writer(const TimelineStyle& style,
                                                                   TraceFile& file, int rank);

// The event by which a writer marks another world. `scope`: of the event, and what it names.
[[nodiscard]] std::string world_event(const WorldMark& mark, const std::string& scope,
                                      const std::string& when);

// A row per tensor, a bar per phase, the rank as the process.
[[nodiscard]] std::unique_ptr<TimelineWriter> make_rueda_timeline(TraceFile& file, int rank);
// Laid out and named as Horovod's.
[[nodiscard]] std::unique_ptr<TimelineWriter> make_horovod_timeline(TraceFile& file, int rank,
                                                                    bool mark_cycles);

}  // namespace rueda
