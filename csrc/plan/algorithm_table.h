// Which algorithm is used for which size: a table of size ranges.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace rueda {

enum class Algorithm : std::uint8_t {
  flat,  // one host: every rank copies its data into shared memory and reads that of all others
  // One host: like flat, but in parts. Every rank combines its own part, and all read the results.
  staged,
  direct,  // one host: ranks read and write each other's tensors
  ring,    // messages around a ring, over the transport
  // Several hosts: reduce-scatter within each, a ring for each slice across, all-gather within.
  hierarchical,
  // Several hosts: the same within each; recursive doubling across, by one rank of each.
  doubling,
  halving,  // several hosts: like doubling, but recursive halving across
  tree,     // several hosts: like doubling, but two binary trees across, each for half of the data
  // All-to-all of several hosts: what the members of a host have for a rank of another host is
  // gathered in memory and sent as one message.
  gathered,
  pairwise,  // all-to-all of several hosts: a message for each pair of ranks
};

// What a table is for: process sets whose members share one host's memory, other sets, or the
// all-to-all of other sets, whose size is what a rank has for one rank of another host.
enum class Extent : std::uint8_t { one_host, several_hosts, alltoall_across };

[[nodiscard]] std::string_view name_of(Algorithm algorithm);

class AlgorithmTable {
 public:
  struct Row {
    std::int64_t from = 0;  // bytes; the range ends where the next row begins
    Algorithm algorithm = Algorithm::ring;
  };

  // `small` below `limit` bytes, `large` from `limit` on.
  static AlgorithmTable of_limit(std::int64_t limit, Algorithm small = Algorithm::flat,
                                 Algorithm large = Algorithm::direct);
  // Each row applies from its size on; the first starts at 0.
  static AlgorithmTable of_rows(std::vector<Row> rows);
  // "flat:0-8K;direct:8K-1M;ring:1M-": bytes; the upper end is exclusive. Later ranges override
  // earlier ones, and sizes that none covers stay as in `otherwise`. "ring" alone means all sizes;
  // empty or "auto" is `otherwise`. Algorithms that are not for `extent` are checked and ignored.
  // Fails with a text that says what is accepted.
  static Expected<AlgorithmTable> parse(std::string_view text, const AlgorithmTable& otherwise,
                                        Extent extent = Extent::one_host);

  // Whether `text` leaves the algorithm of any size to what parse() is given otherwise; also if
  // parse() does not accept it.
  [[nodiscard]] static bool is_partial(std::string_view text, Extent extent);

  // Whether `text`, which parse() accepts, assigns any size to an algorithm that must know which
  // ranks share a host.
  [[nodiscard]] static bool needs_hosts(std::string_view text);

  [[nodiscard]] Algorithm choose(std::int64_t bytes) const;
  [[nodiscard]] const std::vector<Row>& rows() const { return rows_; }
  // In the format of parse().
  [[nodiscard]] std::string to_string() const;

 private:
  // `last` is exclusive.
  void set(std::int64_t first, std::int64_t last, Algorithm algorithm);
  void merge_rows();

  std::vector<Row> rows_{{0, Algorithm::ring}};  // by size; initially the ring for all
};

}  // namespace rueda
