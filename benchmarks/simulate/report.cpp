#include "report.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <string_view>
#include <vector>

#include "core/strings.h"

namespace rueda::simulate {

namespace {

constexpr double mega = 1e6;

// Digits as people read them, whatever the locale.
std::string fixed(double value, int digits) {
  char text[64];
  const int length = std::snprintf(text, sizeof text, "%.*f", digits, value);
  return {text, static_cast<std::size_t>(length)};
}

std::int64_t bytes_of(const Settings& settings) {
  return std::accumulate(
      settings.tensors.begin(), settings.tensors.end(), std::int64_t{0},
      [](std::int64_t sum, const Tensor& tensor) { return sum + 4 * tensor.elements; });
}

// Seconds in which a link carries 2(H-1)/H of the tensors: no allreduce is quicker.
double bound(const Settings& settings) {
  const double share = 2.0 * (settings.hosts - 1) / settings.hosts;
  return share * static_cast<double>(bytes_of(settings)) * settings.costs.link.per_byte * 1e-9;
}

struct Range {
  std::int64_t least = 0;
  std::int64_t most = 0;
};

// Of all ranks in one step.
template <class Get>
Range range_of(const StepResult& step, Get get) {
  Range range{std::invoke(get, step.traffic.front()), 0};
  for (const Traffic& traffic : step.traffic) {
    const std::int64_t value = std::invoke(get, traffic);
    range = {std::min(range.least, value), std::max(range.most, value)};
  }
  return range;
}

std::string text_of(const Range& range) {
  return range.least == range.most ? str(range.most) : str(range.least, " to ", range.most);
}

std::string megabytes(const Range& range) {
  const std::string most = fixed(static_cast<double>(range.most) / mega, 2);
  const std::string least = fixed(static_cast<double>(range.least) / mega, 2);
  return least == most ? most : str(least, " to ", most);
}

// An object of JSON, written field by field.
class Object {
 public:
  explicit Object(int depth) : indent_(static_cast<std::size_t>(2 * depth), ' ') {}

  Object& add(std::string_view name, const std::string& value) {
    text_ += str(text_.empty() ? "" : ",", "\n", indent_, "  \"", name, "\": ", value);
    return *this;
  }
  Object& add(std::string_view name, std::int64_t value) { return add(name, str(value)); }
  Object& add(std::string_view name, const Range& range) {
    return add(name, str("[", range.least, ", ", range.most, "]"));
  }
  Object& add_real(std::string_view name, double value) { return add(name, fixed(value, 9)); }
  [[nodiscard]] std::string text() const { return str("{", text_, "\n", indent_, "}"); }

 private:
  std::string indent_;
  std::string text_;
};

std::string step_of(const StepResult& step) {
  const Traffic& root = step.traffic.front();
  return Object(2)
      .add_real("seconds", step.seconds)
      .add("batches", static_cast<std::int64_t>(step.batches))
      .add("negotiated_lists", static_cast<std::int64_t>(step.lists))
      .add("replayed_rounds", static_cast<std::int64_t>(step.rounds))
      .add("data_messages_per_rank", range_of(step, &Traffic::data_messages))
      .add("data_bytes_per_rank", range_of(step, &Traffic::data_bytes))
      .add("link_bytes_per_host", step.link_bytes)
      .add("control_messages_per_rank", range_of(step, &Traffic::control_messages))
      .add("root_control_sent", root.control_sent)
      .add("root_control_received", root.control_received)
      .add("root_control_bytes", root.control_bytes())
      .add_real("root_busy_seconds", step.root_busy)
      .text();
}

}  // namespace

std::string as_json(const Settings& settings, const Result& result) {
  std::string steps;
  for (const StepResult& step : result.steps) {
    steps += str(steps.empty() ? "" : ", ", step_of(step));
  }
  return Object(0)
             .add("hosts", settings.hosts)
             .add("ranks", settings.ranks())
             .add("tensors", static_cast<std::int64_t>(settings.tensors.size()))
             .add("tensor_bytes", bytes_of(settings))
             .add_real("link_bound_seconds", bound(settings))
             .add("steps", str("[", steps, "]"))
             .add("buffer_bytes_per_rank", result.buffer_bytes)
             .add("control_state_bytes_per_rank", result.control_bytes)
             .add("events", static_cast<std::int64_t>(result.events))
             .text() +
         "\n";
}

std::string as_text(const Settings& settings, const Result& result) {
  std::string text = str(
      settings.ranks(), " ranks on ", settings.hosts, " hosts, links of ",
      fixed(8 / settings.costs.link.per_byte, 3), " Gbit/s and ",
      fixed(settings.costs.link.latency * 1e-3, 1), " us; ", settings.tensors.size(),
      " tensors of ", fixed(static_cast<double>(bytes_of(settings)) / mega, 2),
      " MB together, which the links carry in ", fixed(bound(settings) * 1e3, 3), " ms at best\n");
  for (std::size_t i = 0; i < result.steps.size(); ++i) {
    const StepResult& step = result.steps[i];
    const Traffic& root = step.traffic.front();
    text += str(
        "\nstep ", i + 1, ": ", fixed(step.seconds * 1e3, 3), " ms\n", "  agreed on     ",
        step.batches, " batches: ", step.lists, " lists negotiated, ", step.rounds,
        " rounds replayed\n", "  data          ", text_of(range_of(step, &Traffic::data_messages)),
        " messages, ", megabytes(range_of(step, &Traffic::data_bytes)), " MB sent by a rank; ",
        fixed(static_cast<double>(step.link_bytes) / mega, 2), " MB by a host\n",
        "  control       ", text_of(range_of(step, &Traffic::control_messages)),
        " messages sent and received by a rank\n", "  root          ", root.control_sent,
        " control messages sent, ", root.control_received, " received, ", root.control_bytes(),
        " bytes; busy with them for ", fixed(step.root_busy * 1e3, 3), " ms\n");
  }
  text += str("\nmemory of a rank: ", fixed(static_cast<double>(result.buffer_bytes) / mega, 2),
              " MB of fusion buffers and staging at most, ",
              fixed(static_cast<double>(result.control_bytes) / 1e3, 1),
              " KB for what was agreed on\n");
  return text;
}

}  // namespace rueda::simulate
