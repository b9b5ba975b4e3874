// A timeline in the format that tools for Horovod's timeline read: a process per tensor, begin and
// end events of nested bars, Horovod's names.
#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coordinator/timeline_writer.h"
#include "core/strings.h"

namespace rueda {

namespace {

// Horovod's names for a collective. The transfer always has MPI's name, whatever moves the bytes:
// of Horovod's names for transfers between CPUs, it is the one that tools know.
struct CollectiveNames {
  Collective collective;
  std::string_view prefix;  // of the tensor's name in the timeline
  std::string_view bar;     // also of the negotiation, after NEGOTIATE_
  std::string_view transfer;
};

constexpr std::array collective_names{
    CollectiveNames{Collective::allreduce, "allreduce", "ALLREDUCE", "MPI_ALLREDUCE"},
    CollectiveNames{Collective::allgather, "allgather", "ALLGATHER", "MPI_ALLGATHER"},
    CollectiveNames{Collective::broadcast, "broadcast", "BROADCAST", "MPI_BCAST"},
    CollectiveNames{Collective::reduce_scatter, "reducescatter", "REDUCESCATTER",
                    "MPI_REDUCESCATTER"},
    CollectiveNames{Collective::alltoall, "alltoall", "ALLTOALL", "MPI_ALLTOALL"},
    CollectiveNames{Collective::barrier, "barrier", "BARRIER", ""},
};

// Horovod's names for the phases of an operation; phases not listed here are transfers.
struct PhaseName {
  std::string_view phase;
  std::string_view name;
};
constexpr std::array phase_names{
    PhaseName{"PACK", "MEMCPY_IN_FUSION_BUFFER"},
    PhaseName{"UNPACK", "MEMCPY_OUT_FUSION_BUFFER"},
};

// Null for what Horovod does not record, e.g. changes of process sets.
const CollectiveNames* names_of(Collective collective) {
  const auto* const found =
      std::find_if(collective_names.begin(), collective_names.end(),
                   [&](const CollectiveNames& names) { return names.collective == collective; });
  return found == collective_names.end() ? nullptr : found;
}

std::string_view name_of_phase(std::string_view phase, const CollectiveNames& names) {
  const auto* const found =
      std::find_if(phase_names.begin(), phase_names.end(),
                   [&](const PhaseName& name) { return name.phase == phase; });
  return found == phase_names.end() ? names.transfer : found->name;
}

// Arguments of a tensor's last end event: "dtype", and "shape" if the result has the input's.
std::string arguments_of(const Request& request) {
  std::string text = str(R"(,"args":{"dtype":")", name_of(request.dtype), '"');
  const bool keeps_shape =
      request.collective == Collective::allreduce || request.collective == Collective::broadcast;
  if (keeps_shape) {
    text += ",\"shape\":\"[";
    for (std::size_t i = 0; i < request.shape.size(); ++i) {
      text += str(i == 0 ? "" : ", ", request.shape[i]);
    }
    text += "]\"";
  }
  return text + '}';
}

class HorovodTimeline final : public TimelineWriter {
 public:
  HorovodTimeline(TraceFile& file, int rank, bool mark_cycles)
      : file_(file), rank_(rank), mark_cycles_(mark_cycles) {
    using std::chrono::system_clock;
    const auto since_epoch = std::chrono::duration_cast<std::chrono::microseconds>(
        system_clock::now().time_since_epoch() - (Clock::now() - file_.start()));
    file_.write(str(R"("name":"process_name","ph":"M","pid":0,)",
                    R"("args":{"start_time_since_epoch_in_micros":)", since_epoch.count(), "}"));
    write_order(0);
  }
  HorovodTimeline(const HorovodTimeline&) = delete;
  HorovodTimeline& operator=(const HorovodTimeline&) = delete;

  // A timeline may be stopped while collectives run: one that other ranks have begun, for one.
  ~HorovodTimeline() override { end_all(Clock::now()); }

  void ready(int set, const Request& request, std::span<const int> ranks, Time when) override {
    const CollectiveNames* const names = names_of(request.collective);
    if (names == nullptr) return;
    in_turn(lane_of(set, request.name, *names),
            [this, names, ready = std::vector<int>(ranks.begin(), ranks.end()), when](Lane& lane) {
              tell_ready(lane, *names, ready, when);
            });
  }

  void started(int set, const Request& request, const std::optional<Wait>& wait,
               Time when) override {
    const CollectiveNames* const names = names_of(request.collective);
    if (names == nullptr) return;
    in_turn(lane_of(set, request.name, *names), [this, names, wait, when](Lane& lane) {
      if (lane.state == Lane::idle) {  // it was not negotiated this time
        if (wait) {
          tell_ready(lane, *names, {&rank_, 1}, wait->submitted);
        } else {
          begin(lane, str("NEGOTIATE_", names->bar), when);
        }
      }
      end(lane, when);
      begin(lane, names->bar, when);
      lane.state = Lane::running;
    });
  }

  void ended(int set, const Request& request, Time from, Time until,
             std::span<const Operation::Phase> phases) override {
    const CollectiveNames* const names = names_of(request.collective);
    if (names == nullptr) return;
    Lane& lane = lane_of(set, request.name, *names);
    if (lane.state == Lane::negotiating) return;  // the next round; this one's start was missed
    if (lane.state == Lane::idle) begin(lane, names->bar, from);
    const Operation::Phase whole{"", from, until};
    const std::span<const Operation::Phase> parts =
        phases.empty() ? std::span<const Operation::Phase>{&whole, 1} : phases;
    bar(lane, "QUEUE", from, parts.front().begin);
    for (const auto& part : parts)
      bar(lane, name_of_phase(part.name, *names), part.begin, part.end);
    end(lane, until, arguments_of(request));
    lane.state = Lane::idle;
    while (lane.state != Lane::running && !lane.later.empty()) {
      const Happening next = std::move(lane.later.front());
      lane.later.pop_front();
      next(lane);
    }
  }

  void answered(int set, const std::string& name, Time when) override {
    const auto found = lanes_.find(key_of(set, name));
    if (found == lanes_.end()) return;
    in_turn(found->second, [this, when](Lane& lane) {
      if (lane.state == Lane::idle) return;
      end(lane, when);
      lane.state = Lane::idle;
    });
  }

  void stalled(int set, const std::string& name, Time when) override {
    const auto found = lanes_.find(key_of(set, name));
    if (found == lanes_.end()) return;
    const std::string time = later(found->second, when);
    file_.write(
        str(R"("name":"STALL","ph":"i","s":"p","pid":)", found->second.pid, ",\"ts\":", time));
  }

  void cycle(Time when) override {
    if (!mark_cycles_) return;
    file_.write(str(R"("name":"CYCLE_START","ph":"i","s":"g","ts":)", file_.microseconds(when)));
  }

  void world(const WorldMark& mark, Time when) override {
    end_all(when);
    rank_ = mark.rank;
    file_.write(world_event(mark, "\"g\"", file_.microseconds(when)));
  }

 private:
  struct Lane;
  using Happening = std::function<void(Lane&)>;

  // One tensor. Bars nest, so an open bar must end before another one begins.
  struct Lane {
    int pid = 0;
    enum : std::uint8_t { idle, negotiating, running } state = idle;
    Time last;  // last time written; times in a lane never decrease
    // Events of the next round, while this one runs: other ranks may be ahead, and a rank that has
    // joined does not wait for a round to end before the next.
    std::deque<Happening> later;
  };

  static void in_turn(Lane& lane, Happening happening) {
    if (lane.state == Lane::running) {
      lane.later.push_back(std::move(happening));
    } else {
      happening(lane);
    }
  }

  static std::string key_of(int set, const std::string& name) { return str(set, ' ', name); }

  Lane& lane_of(int set, const std::string& name, const CollectiveNames& names) {
    const auto [found, inserted] = lanes_.try_emplace(key_of(set, name));
    Lane& lane = found->second;
    if (inserted) {
      lane.pid = static_cast<int>(lanes_.size());
      lane.last = file_.start();
      file_.write(str(R"("name":"process_name","ph":"M","pid":)", lane.pid, R"(,"args":{"name":)",
                      TraceFile::text(str(names.prefix, '.', name)), "}"));
      write_order(lane.pid);
    }
    return lane;
  }

  void write_order(int pid) {
    file_.write(str(R"("name":"process_sort_index","ph":"M","pid":)", pid,
                    R"(,"args":{"sort_index":)", pid, "}"));
  }

  std::string later(Lane& lane, Time when) {
    lane.last = std::max(lane.last, when);
    return file_.microseconds(lane.last);
  }

  void tell_ready(Lane& lane, const CollectiveNames& names, std::span<const int> ranks, Time when) {
    if (lane.state == Lane::idle) {
      begin(lane, str("NEGOTIATE_", names.bar), when);
      lane.state = Lane::negotiating;
    }
    for (const int rank : ranks) {
      const std::string time = later(lane, when);
      file_.write(str("\"name\":\"", rank, R"(","ph":"X","pid":)", lane.pid, ",\"ts\":", time,
                      ",\"dur\":0"));
    }
  }

  void begin(Lane& lane, std::string_view name, Time when) {
    const std::string time = later(lane, when);
    file_.write(
        str("\"name\":", TraceFile::text(name), R"(,"ph":"B","pid":)", lane.pid, ",\"ts\":", time));
  }

  void end(Lane& lane, Time when, const std::string& arguments = "") {
    const std::string time = later(lane, when);
    file_.write(str(R"("ph":"E","pid":)", lane.pid, ",\"ts\":", time, arguments));
  }

  // Ends every bar that is open, and forgets what would follow.
  void end_all(Time when) {
    for (auto& [key, lane] : lanes_) {
      if (lane.state != Lane::idle) end(lane, when);
      lane.state = Lane::idle;
      lane.later.clear();
    }
  }

  void bar(Lane& lane, std::string_view name, Time from, Time until) {
    begin(lane, name, from);
    end(lane, until);
  }

  TraceFile& file_;
  int rank_;  // in the current world
  const bool mark_cycles_;
  std::unordered_map<std::string, Lane> lanes_;
};

}  // namespace

std::unique_ptr<TimelineWriter> make_horovod_timeline(TraceFile& file, int rank, bool mark_cycles) {
  return std::make_unique<HorovodTimeline>(file, rank, mark_cycles);
}

}  // namespace rueda
