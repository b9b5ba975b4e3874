#include "coordinator/timeline_writer.h"

#include <algorithm>
#include <unordered_map>

#include "core/strings.h"

namespace rueda {

namespace {

// "ALLREDUCE"
std::string in_capitals(std::string_view name) {
  std::string text(name);
  for (char& letter : text) {
    if (letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
  }
  return text;
}

}  // namespace

std::string world_event(const WorldMark& mark, const std::string& scope, const std::string& when) {
  return str(R"("name":"WORLD","ph":"i","s":)", scope, ",\"ts\":", when, R"(,"args":{"epoch":)",
             mark.epoch, ",\"rank\":", mark.rank, ",\"size\":", mark.size, "}");
}

namespace {

class RuedaTimeline final : public TimelineWriter {
 public:
  RuedaTimeline(TraceFile& file, int rank) : file_(file), rank_(rank) {
    file_.write(str(R"("name":"process_name","ph":"M","pid":)", rank_, R"(,"args":{"name":"rank )",
                    rank_, "\"}"));
  }

  void ready(int, const Request&, std::span<const int>, Time) override {}

  void started(int set, const Request& request, const std::optional<Wait>& wait, Time) override {
    if (!wait) return;
    const Time taken = std::max(wait->taken, wait->submitted);
    const int row = row_of(set, request.name);
    bar(row, "QUEUE", wait->submitted, taken);
    bar(row, "NEGOTIATE", taken, std::max(wait->agreed, taken));
  }

  void ended(int set, const Request& request, Time begin, Time end,
             std::span<const Operation::Phase> phases) override {
    const int row = row_of(set, request.name);
    bar(row, in_capitals(name_of(request.collective)), begin, end);
    for (const auto& phase : phases) bar(row, phase.name, phase.begin, phase.end);
  }

  void answered(int, const std::string&, Time) override {}

  void stalled(int set, const std::string& name, Time when) override {
    const int row = row_of(set, name);
    file_.write(str(R"("name":"STALL","ph":"i","s":"t","pid":)", rank_, ",\"tid\":", row,
                    ",\"ts\":", file_.microseconds(when)));
  }

  void cycle(Time) override {}

  void world(const WorldMark& mark, Time when) override {
    file_.write(world_event(mark, str(R"("p","pid":)", rank_), file_.microseconds(when)));
  }

 private:
  // Process sets reduce tensors of one name at once, and bars of one row must not overlap.
  int row_of(int set, const std::string& tensor) {
    const auto [row, inserted] =
        rows_.try_emplace(str(set, ' ', tensor), static_cast<int>(rows_.size()) + 1);
    if (inserted) {
      file_.write(str(R"("name":"thread_name","ph":"M","pid":)", rank_, ",\"tid\":", row->second,
                      R"(,"args":{"name":)",
                      TraceFile::text(set == 0 ? tensor : str(tensor, " (process set ", set, ")")),
                      "}"));
    }
    return row->second;
  }

  void bar(int row, std::string_view phase, Time begin, Time end) {
    begin = std::max(begin, file_.start());  // what was under way when the timeline was opened
    end = std::max(begin, end);
    file_.write(str("\"name\":", TraceFile::text(phase), R"(,"ph":"X","pid":)", rank_,
                    ",\"tid\":", row, ",\"ts\":", file_.microseconds(begin),
                    ",\"dur\":", TraceFile::microseconds(end - begin)));
  }

  TraceFile& file_;
  const int rank_;
  std::unordered_map<std::string, int> rows_;  // by process set and name
};

}  // namespace

std::unique_ptr<TimelineWriter> make_rueda_timeline(TraceFile& file, int rank) {
  return std::make_unique<RuedaTimeline>(file, rank);
}

std::unique_ptr<TimelineWriter> make_timeline_writer(const TimelineStyle& style, TraceFile& file,
                                                     int rank) {
  switch (style.format) {
    case TimelineFormat::rueda: return make_rueda_timeline(file, rank);
    case TimelineFormat::horovod: return make_horovod_timeline(file, rank, style.mark_cycles);
  }
  return nullptr;
}

}  // namespace rueda
