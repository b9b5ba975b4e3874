// Which codec compresses which parameter's gradient, and what error feedback keeps.
#pragma once

#include <fnmatch.h>
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rueda/compression.h"

namespace rueda::libtorch {

struct CompressionRule {
  std::string pattern;  // a shell pattern for parameter names
  Compression compression;
};

// No rules: gradients travel unchanged. A codec alone is also a policy: `{CodecKind::int8}`.
struct CompressionPolicy {
  CompressionPolicy() = default;
  CompressionPolicy(CodecKind codec, double fraction = 0) : rules({{"*", {codec, fraction}}}) {}
  CompressionPolicy(std::vector<CompressionRule> given) : rules(std::move(given)) {}

  // The first rule that matches a parameter's name applies; if none does, there is no codec.
  std::vector<CompressionRule> rules = {};
  // Gradients with fewer elements are not compressed: the conversion does not pay off, and they are
  // often the ones that suffer.
  std::int64_t min_elements = 1024;
  // Adds what a codec loses of a gradient to the parameter's next one (docs/compression.md), at 4
  // bytes per element. By default for sparse codecs only: the others lose too little.
  std::optional<bool> error_feedback = {};

  [[nodiscard]] Compression codec_for(const std::string& name, std::int64_t elements) const {
    if (elements < min_elements) return {};
    for (const CompressionRule& rule : rules) {
      if (::fnmatch(rule.pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0) return rule.compression;
    }
    return {};
  }
  [[nodiscard]] bool keeps_residual(const Compression& compression) const {
    return compression.codec != CodecKind::none &&
           error_feedback.value_or(is_sparse(compression.codec));
  }
};

// What the next steps depend on besides the optimizer's own state. Each rank has its own, since
// ranks lose different parts of their gradients.
struct CompressionState {
  std::int64_t steps = 0;
  std::map<std::string, ::torch::Tensor> residuals = {};  // float32, by the parameter's name
};

}  // namespace rueda::libtorch
