#include "server/update_rule.h"

#include <cmath>
#include <map>
#include <mutex>
#include <string>

#include "core/strings.h"

namespace rueda {

namespace {

void sum(const UpdateArguments& update) {
  float* const values = update.values.data();
  const float* const delta = update.delta.data();
  if (update.factor == 1.0F) {
    for (std::size_t i = 0; i < update.values.size(); ++i) values[i] += delta[i];
  } else {
    for (std::size_t i = 0; i < update.values.size(); ++i) values[i] += update.factor * delta[i];
  }
}

// Duchi et al., "Adaptive subgradient methods", JMLR 2011; at the server as in Dean et al., "Large
// scale distributed deep networks", NIPS 2012, section 4.1.
void adagrad(const UpdateArguments& update) {
  const auto rate = static_cast<float>(update.parameters[0]);
  const auto epsilon = static_cast<float>(update.parameters[1]);
  float* const values = update.values.data();
  for (std::size_t i = 0; i < update.values.size(); ++i) {
    const float gradient = update.factor * update.delta[i];
    update.state[i] += gradient * gradient;
    values[i] -= rate * gradient / (std::sqrt(update.state[i]) + epsilon);
  }
}

struct Rules {
  std::mutex mutex;
  std::map<std::string, UpdateRule, std::less<>> by_name{
      {"sum", {.apply = sum}},
      {"adagrad", {.apply = adagrad, .states = 1, .parameters = {"learning rate", "epsilon"}}}};
};

// Leaked on purpose: the engine may still be working while the process exits.
Rules& rules() {
  static auto* instance = new Rules;
  return *instance;
}

}  // namespace

const UpdateRule* find_update_rule(std::string_view name) {
  const std::lock_guard lock(rules().mutex);
  const auto found = rules().by_name.find(name);
  return found == rules().by_name.end() ? nullptr : &found->second;
}

bool is_own_rule(std::string_view name) {
  return name == "sum" || name == "adagrad";
}

Status check_parameters(std::string_view name, std::span<const double> parameters) {
  const UpdateRule* const rule = find_update_rule(name);
  if (rule == nullptr) {
    return {ErrorCode::invalid_argument, str("there is no update rule '", name, "'")};
  }
  if (rule->parameters.size() != parameters.size()) {
    return {ErrorCode::invalid_argument,
            str("the update rule '", name, "' takes ", rule->parameters.size(), " parameters, not ",
                parameters.size())};
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (std::isfinite(parameters[i]) && parameters[i] >= 0) continue;
    return {ErrorCode::invalid_argument,
            str("the ", rule->parameters[i], " of the update rule '", name, "' is ", parameters[i],
                ": it must be finite and not negative")};
  }
  return {};
}

void register_update_rule(const std::string& name, UpdateRule rule) {
  constexpr int max_states = 255;
  if (name.empty() || rule.apply == nullptr || rule.states < 0 || rule.states > max_states) {
    throw InvalidArgumentError(
        str("an update rule needs a name, a function and 0 to ", max_states, " states"));
  }
  const std::lock_guard lock(rules().mutex);
  if (!rules().by_name.emplace(name, std::move(rule)).second) {
    throw InvalidArgumentError(str("an update rule '", name, "' is already registered"));
  }
}

}  // namespace rueda
