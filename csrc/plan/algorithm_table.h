// Which algorithm moves how much: ranges of sizes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace rueda {

enum class Algorithm : std::uint8_t {
  flat,    // one host: every rank copies its data into shared memory and reads that of all others
  direct,  // one host: ranks read and write each other's tensors
  ring,    // messages around a ring, over the transport
};

[[nodiscard]] std::string_view name_of(Algorithm algorithm);

class AlgorithmTable {
 public:
  struct Row {
    std::int64_t from = 0;  // bytes; up to where the next row begins
    Algorithm algorithm = Algorithm::ring;
  };

  // Flat below `flat_limit` bytes, direct from there on.
  static AlgorithmTable of_limit(std::int64_t flat_limit);
  // "flat:0-8K;direct:8K-1M;ring:1M-": bytes, an upper end is not part of its range. Later ranges
  // override earlier ones; what none of them covers stays as in `otherwise`; "ring" alone means all
  // sizes; empty or "auto" is `otherwise`. Fails, saying what is accepted.
  static Expected<AlgorithmTable> parse(std::string_view text, const AlgorithmTable& otherwise);

  [[nodiscard]] Algorithm choose(std::int64_t bytes) const;
  [[nodiscard]] const std::vector<Row>& rows() const { return rows_; }
  // As parse() reads it.
  [[nodiscard]] std::string to_string() const;

 private:
  // last: not part of the range.
  void set(std::int64_t first, std::int64_t last, Algorithm algorithm);

  std::vector<Row> rows_{{0, Algorithm::ring}};  // by size; all is the ring's at first
};

}  // namespace rueda
