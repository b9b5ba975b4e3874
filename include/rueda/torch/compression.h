// Which codec compresses which parameter's gradient, and what error feedback keeps of it.
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
  std::string pattern;  // of parameters' names, as for the shell
  Compression compression;
};

// No rules: gradients travel as they are. A codec alone is a policy, too: `{CodecKind::int8}`.
struct CompressionPolicy {
  CompressionPolicy() = default;
  CompressionPolicy(CodecKind codec, double fraction = 0) : rules({{"*", {codec, fraction}}}) {}
  CompressionPolicy(std::vector<CompressionRule> given) : rules(std::move(given)) {}

  // The first one that fits a parameter's name counts; where none fits, there is no codec.
  std::vector<CompressionRule> rules = {};
  // Gradients of fewer elements are not compressed: that is not worth the conversion, and they are
  // often the ones that suffer.
  std::int64_t min_elements = 1024;
  // What a codec loses of a gradient is added to the parameter's next one (docs/compression.md). It
  // takes 4 bytes for each element. By default for sparse codecs only: the others lose too little.
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

// What the next steps depend on besides the optimizer's own state. Of one rank: the others have
// lost other parts of their gradients.
struct CompressionState {
  std::int64_t steps = 0;
  std::map<std::string, ::torch::Tensor> residuals = {};  // float32, by the parameter's name
};

}  // namespace rueda::libtorch
