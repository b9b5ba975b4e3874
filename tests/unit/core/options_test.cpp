#include "core/options.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <set>

#include "core/strings.h"
#include "core/unknown_variables.h"

namespace rueda::test::options_test {
namespace {

using Variables = std::map<std::string, std::string>;

Environment environment_of(Variables variables) {
  return [variables](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

Expected<Options> read(const Variables& variables, const Variables& overrides = {}) {
  return read_options(environment_of(variables), overrides);
}

// The error of a read that must fail.
std::string refusal(const Variables& variables, const Variables& overrides = {}) {
  const auto options = read(variables, overrides);
  if (options.ok()) return "accepted";
  CHECK(options.status().code() == ErrorCode::initialization);
  return options.status().message();
}

TEST_CASE("without variables every option has its default") {
  const auto options = read({});
  REQUIRE(options.ok());
  for (const OptionSpec& spec : option_table()) {
    CAPTURE(spec.name);
    CHECK(option_text(spec, options.value()) == option_text(spec, Options()));
  }
}

TEST_CASE("the table is sound") {
  std::set<std::string_view> names;
  for (const OptionSpec& spec : option_table()) {
    CAPTURE(spec.name);
    for (const std::string_view name : {spec.name, spec.environment, spec.horovod}) {
      if (!name.empty()) CHECK(names.insert(name).second);
    }
    std::string expected = "RUEDA_";
    for (const char letter : spec.name) {
      expected += static_cast<char>(letter >= 'a' && letter <= 'z' ? letter - 'a' + 'A' : letter);
    }
    CHECK(spec.environment == expected);
    CHECK((spec.horovod.empty() || spec.horovod.starts_with("HOROVOD_")));
    CHECK((spec.type == OptionType::choice) == !spec.choices.empty());
    CHECK_FALSE(spec.description.empty());
    // The type of the field matches the type of the option.
    const bool is_text = spec.type == OptionType::text || spec.type == OptionType::choice;
    CHECK(spec.field.index() == (is_text ? 0 : spec.type == OptionType::seconds ? 2 : 1));
    // Defaults are valid values.
    const std::string value = option_text(spec, Options());
    if (!value.empty()) CHECK(read({}, {{std::string(spec.name), value}}).ok());
  }
}

TEST_CASE("RUEDA_* comes before HOROVOD_*, and an override before both") {
  const Variables horovod{{"HOROVOD_FUSION_THRESHOLD", "1000"}};
  Variables both = horovod;
  both["RUEDA_FUSION_THRESHOLD"] = "2000";
  Variables empty = horovod;
  empty["RUEDA_FUSION_THRESHOLD"] = "";
  CHECK(read(horovod)->fusion_threshold == 1000);
  CHECK(read(both)->fusion_threshold == 2000);
  CHECK(read(empty)->fusion_threshold == 1000);  // empty is unset
  CHECK(read(both, {{"fusion_threshold", "3000"}})->fusion_threshold == 3000);
  // Values that are overridden are not parsed.
  CHECK(read({{"HOROVOD_FUSION_THRESHOLD", "lots"}, {"RUEDA_FUSION_THRESHOLD", "2000"}}).ok());
}

TEST_CASE("sizes take suffixes") {
  const auto size = [](const std::string& value) {
    return read({{"RUEDA_FUSION_THRESHOLD", value}})->fusion_threshold;
  };
  CHECK(size("0") == 0);
  CHECK(size("4096") == 4096);
  for (const char* value : {"64K", "64k", "64KB", "64KiB", "64kB", "65536"}) {
    CAPTURE(value);
    CHECK(size(value) == 65536);
  }
  CHECK(size("1.5M") == 3 << 19);
  CHECK(size("2G") == std::int64_t{2} << 30);
}

TEST_CASE("sizes, counts, times and choices that make no sense are refused with what is accepted") {
  for (const char* value : {"lots", "-1", "1.5", "12T", "1KBs", "K", "inf", "nan", "0x10", " 1",
                            "1 ", "1e300", "1e400", "9999999G", "1,5M"}) {
    CAPTURE(value);
    CHECK(refusal({{"RUEDA_FUSION_THRESHOLD", value}}) ==
          "RUEDA_FUSION_THRESHOLD='" + std::string(value) +
              "' is not accepted: give a number of bytes, with K, M or G if wanted");
  }
  CHECK(refusal({{"RUEDA_RING_CHUNK", "0"}}) ==
        "RUEDA_RING_CHUNK='0' is not accepted: give a number of bytes above 0, with K, M or G if "
        "wanted");
  for (const char* value : {"-1", "2.5", "two", "1K"}) {
    CAPTURE(value);
    CHECK(refusal({{"HOROVOD_CACHE_CAPACITY", value}}) ==
          "HOROVOD_CACHE_CAPACITY='" + std::string(value) +
              "' is not accepted: give a whole number from 0");
  }
  for (const char* value : {"-0.5", "1m", "soon", "1e10", "inf"}) {
    CAPTURE(value);
    CHECK(refusal({{"RUEDA_STALL_ERROR", value}}) ==
          "RUEDA_STALL_ERROR='" + std::string(value) +
              "' is not accepted: give a number of seconds from 0 to 1e9");
  }
  for (const char* value : {"0", "-1", "0.5"}) {
    CAPTURE(value);
    CHECK(refusal({}, {{"min_np", value}}) ==
          "min_np='" + std::string(value) + "' is not accepted: give a whole number from 1");
  }
  for (const char* value : {"0", "0.0", "-1"}) {
    CAPTURE(value);
    CHECK(refusal({{"RUEDA_HEARTBEAT", value}}) ==
          "RUEDA_HEARTBEAT='" + std::string(value) +
              "' is not accepted: give a number of seconds above 0 and up to 1e9");
  }
  for (const char* value : {"loud", "debug|info", "debugg", "debu", "|"}) {
    CAPTURE(value);
    CHECK(refusal({{"RUEDA_LOG_LEVEL", value}}) ==
          "RUEDA_LOG_LEVEL='" + std::string(value) +
              "' is not accepted: give trace|debug|info|warning|error|off");
  }
  CHECK(refusal({{"RUEDA_GPU_BACKEND", "mpi"}}) ==
        "RUEDA_GPU_BACKEND='mpi' is not accepted: give auto|nccl|staged");
  CHECK(refusal({}, {{"log_level", ""}}) ==
        "log_level='' is not accepted: give trace|debug|info|warning|error|off");
}

TEST_CASE("seconds, choices and text are taken") {
  const auto options = read({{"RUEDA_STALL_WARNING", "0.25"},
                             {"HOROVOD_LOG_LEVEL", "DEBUG"},
                             {"RUEDA_TRANSPORT", "mpi"},
                             {"HOROVOD_TIMELINE", "/tmp/A file|x.json"}});
  REQUIRE(options.ok());
  CHECK(options.value().stall_warning == 0.25);
  CHECK(options.value().log_level == "debug");
  CHECK(options.value().transport == "mpi");
  CHECK(options.value().timeline == "/tmp/A file|x.json");
}

TEST_CASE("the names of transports that a world reports are accepted") {
  const auto [name, option] = GENERATE(table<std::string, std::string>({{"inproc", "auto"},
                                                                        {"shm", "shm"},
                                                                        {"shm+mpi", "auto"},
                                                                        {"shm+tcp", "tcp"},
                                                                        {"tcp", "tcp"}}));
  const auto options =
      read_options([](std::string_view) { return std::nullopt; }, {{"transport", name}});
  REQUIRE(options.ok());
  CHECK(options->transport == option);
}

TEST_CASE("a timeline has Horovod's format where its variable names the file") {
  const auto format = [](const std::map<std::string, std::string>& environment,
                         const std::map<std::string, std::string>& overrides = {}) {
    return read(environment, overrides).value().timeline_format;
  };
  CHECK(format({}) == "auto");
  CHECK(format({{"HOROVOD_TIMELINE", "a"}}) == "horovod");
  CHECK(format({{"HOROVOD_TIMELINE", "a"}, {"RUEDA_TIMELINE", "b"}}) == "auto");
  CHECK(format({{"HOROVOD_TIMELINE", "a"}}, {{"timeline", "b"}}) == "auto");
  CHECK(format({{"HOROVOD_TIMELINE", "a"}, {"RUEDA_TIMELINE_FORMAT", "rueda"}}) == "rueda");
  CHECK(format({{"RUEDA_TIMELINE", "a"}, {"RUEDA_TIMELINE_FORMAT", "horovod"}}) == "horovod");
}

TEST_CASE("an unknown option is refused with those that exist") {
  const std::string message = refusal({}, {{"fusion_treshold", "1"}});
  CHECK(message.find("there is no option 'fusion_treshold'") == 0);
  for (const OptionSpec& spec : option_table()) {
    CHECK(message.find(spec.name) != std::string::npos);
  }
}

TEST_CASE("an override that is refused is named by its option") {
  CHECK(refusal({}, {{"batches_in_flight", "many"}}) ==
        "batches_in_flight='many' is not accepted: give a whole number from 0");
}

TEST_CASE("the text of a value is read back as the same value") {
  for (const OptionSpec& spec : option_table()) {
    for (const char* value :
         {"0", "1", "1234567", "100000", "0.1", "1234567.125", "123456789", "auto", "off"}) {
      CAPTURE(spec.name, value);
      const std::string name(spec.name);
      auto first = read({}, {{name, value}});
      if (!first.ok()) continue;
      const std::string text = option_text(spec, first.value());
      auto second = read({}, {{name, text}});
      REQUIRE(second.ok());
      if (const auto* field = std::get_if<double Options::*>(&spec.field)) {
        CHECK((*first).**field == (*second).**field);
        CHECK((*first).**field == std::stod(value));
      } else {
        CHECK(option_text(spec, second.value()) == text);
        CHECK((spec.type == OptionType::choice || text == value));
      }
    }
  }
}

TEST_CASE("unknown variables are named with the nearest that exists") {
  const std::vector<std::string> names{"RUEDA_FUSION_TRESHOLD", "RUEDA_TIMELNE", "RUEDA_RANK",
                                       "RUEDA_RING_CHUNK",      "RUEDA_Q",       "PATH",
                                       "RUEDA_TEST_DEVICE",     "HOROVOD_X",     "RUEDA"};
  CHECK(unknown_variables(names) ==
        std::vector<std::string>{
            "the variable RUEDA_FUSION_TRESHOLD is unknown and has no effect; did you mean "
            "RUEDA_FUSION_THRESHOLD?",
            "the variable RUEDA_TIMELNE is unknown and has no effect; did you mean RUEDA_TIMELINE?",
            "the variable RUEDA_Q is unknown and has no effect"});
}

TEST_CASE("a variable with one letter wrong leads to the right one") {
  std::vector<std::string> known(other_variables().begin(), other_variables().end());
  for (const OptionSpec& spec : option_table()) known.emplace_back(spec.environment);
  CHECK(unknown_variables(known).empty());
  for (const std::string& name : known) {
    for (std::size_t at = 6; at < name.size(); ++at) {
      std::string lacking = name;
      lacking.erase(at, 1);
      const auto said = unknown_variables(std::vector{lacking});
      CAPTURE(name, lacking);
      // A typo that yields another valid name, such as RUEDA_RANK, cannot be detected.
      if (!said.empty() && name != "RUEDA_RANK" && name != "RUEDA_SIZE") {
        CHECK(said.front().find(str("did you mean ", name, "?")) != std::string::npos);
      }
    }
  }
}

TEST_CASE("paths of what is written do not depend on a later chdir()") {
  Options options = *read_options(process_environment(), {{"timeline", "trace-%r.json"}});
  options.flight_recorder = "/records";
  anchor_paths(options, "/here");
  CHECK(options.timeline == "/here/trace-%r.json");
  CHECK(options.flight_recorder == "/records");
  CHECK(anchored("", "/here").empty());
  CHECK(anchored("records", "") == "records");  // the working directory has been removed
}

TEST_CASE("the names of the process's variables are found") {
  ::setenv("RUEDA_NO_SUCH_OPTION", "a=b", 1);
  const auto names = environment_names();
  CHECK(std::count(names.begin(), names.end(), "RUEDA_NO_SUCH_OPTION") == 1);
  ::unsetenv("RUEDA_NO_SUCH_OPTION");
}

TEST_CASE("the process's environment is read") {
  const Environment environment = process_environment();
  ::setenv("RUEDA_RING_CHUNK", "12345", 1);
  CHECK(environment("RUEDA_RING_CHUNK") == "12345");
  CHECK(read_options(environment, {})->ring_chunk == 12345);
  ::unsetenv("RUEDA_RING_CHUNK");
  CHECK_FALSE(environment("RUEDA_RING_CHUNK").has_value());
}

}  // namespace
}  // namespace rueda::test::options_test
