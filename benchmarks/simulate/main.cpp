// simulate: see usage() in settings.cpp, and docs/scaling.md.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "core/clock.h"
#include "report.h"
#include "settings.h"
#include "simulation.h"

namespace rueda::simulate {
namespace {

int run(const std::vector<std::string>& arguments) {
  if (std::find(arguments.begin(), arguments.end(), "--help") != arguments.end()) {
    std::fputs(usage().c_str(), stdout);
    return 0;
  }
  const Expected<Settings> settings = parse(arguments);
  if (!settings) {
    std::fprintf(stderr, "simulate: %s\n", settings.status().message().c_str());
    return 2;
  }
  const Time begin = Clock::now();
  const Result result = simulate(settings.value());
  const double seconds = to_seconds(Clock::now() - begin);
  const auto report = settings->json ? as_json : as_text;
  std::fputs(report(settings.value(), result).c_str(), stdout);
  // What differs from run to run goes elsewhere.
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  std::fprintf(stderr, "simulated %llu events in %.2f s with %.0f MiB\n",
               static_cast<unsigned long long>(result.events), seconds,
               static_cast<double>(used.ru_maxrss) / 1024);
  return 0;
}

}  // namespace
}  // namespace rueda::simulate

int main(int count, char** arguments) {
  try {
    return rueda::simulate::run({arguments + 1, arguments + count});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "simulate: %s\n", error.what());
    return 1;
  }
}
