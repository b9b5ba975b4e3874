#include "api/current_runtime.h"
#include "rueda/rueda.h"

namespace rueda {

AlgorithmChoice choose_algorithm(std::int64_t bytes) {
  if (bytes < 0) throw InvalidArgumentError("a number of bytes cannot be negative");
  const auto runtime = current_runtime();
  const Algorithm algorithm = runtime->algorithms().choose(bytes);
  const HostCosts& costs = runtime->host().costs();
  const auto length = static_cast<std::size_t>(bytes);
  AlgorithmChoice choice;
  choice.algorithm = choice.registered = name_of(algorithm);
  if (!runtime->host().is_world(runtime->topology().size)) {
    choice.algorithm = choice.registered = name_of(Algorithm::ring);
    return choice;
  }
  if (algorithm == Algorithm::ring) return choice;
  if (length <= line_bytes) {
    choice.algorithm = choice.registered = "line";
  } else if (length >= runtime->host_policy().registered_min) {
    choice.registered = name_of(Algorithm::direct);
  }
  const auto predict = [&](const std::string& name, const MeasuredCost& direct) {
    if (name == "line") return costs.exchange / 1000;
    return costs.at(name == name_of(Algorithm::direct) ? direct : costs.flat, length) / 1000;
  };
  choice.predicted_us = predict(choice.algorithm, costs.direct);
  choice.predicted_registered_us = predict(choice.registered, costs.registered);
  return choice;
}

}  // namespace rueda
