// The messages that negotiators exchange, and their encoding.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "plan/response.h"
#include "plan/response_cache.h"
#include "plan/retiring_ranks.h"
#include "plan/wire.h"

namespace rueda {

// One way in which some ranks of a subtree have requested a name. More than one is a mismatch.
struct Variant {
  Request request;
  // Sorted. Left empty in a complete announcement with a single variant: the whole subtree, except
  // `absent`.
  std::vector<int> ranks;
};

// Up the tree: a subtree has submitted a name, or, if `partial`, some of its ranks have.
struct Announcement {
  std::vector<Variant> variants;
  std::vector<std::pair<int, std::int64_t>> first_extents;  // allgather: (rank, rows)
  std::vector<int> absent;                                  // joined without submitting
  // Adds an error to what was announced before; has no effect if that is no longer pending.
  bool amends = false;
  bool partial = false;
  double age = 0;  // partial: seconds since the first rank submitted it
};

struct UpMessage {
  // How many lists of responses the sender had applied: distinguishes what was sent before an error
  // from what was sent after it.
  std::uint64_t applied = 0;
  std::uint64_t resolved = 0;  // how many numbers unknown to the parent this message settles
  std::vector<int> joined;     // in the order in which they joined
  std::vector<int> leaving;
  std::vector<RetiringRank> retiring;
  std::vector<std::uint64_t> cached;  // numbers of what the whole subtree requests unchanged
  std::vector<Announcement> announcements;

  [[nodiscard]] bool empty() const {
    return resolved == 0 && joined.empty() && leaving.empty() && retiring.empty() &&
           cached.empty() && announcements.empty();
  }
};

// The last two belong to RoundAgreement.
enum class MessageKind : std::uint8_t { up, responses, unknown_ids, rounds_up, rounds_down };

// Whether a message belongs to RoundAgreement.
[[nodiscard]] bool is_about_rounds(std::span<const std::byte> message);

[[nodiscard]] std::vector<std::byte> encode(const UpMessage& message);
// What matches an entry of the cache travels as its number.
[[nodiscard]] std::vector<std::byte> encode(const ResponseList& responses,
                                            const ResponseCache& cache);
// Down the tree: these numbers have been evicted; send what they stood for.
[[nodiscard]] std::vector<std::byte> encode_unknown_ids(const std::vector<std::uint64_t>& ids);

// Decode the rest of a message whose kind has been read. Empty if it is malformed, or says what no
// negotiator of a set of `set_size` ranks says (see negotiation_check.h).
[[nodiscard]] std::optional<UpMessage> decode_up(Reader& reader, int set_size);
[[nodiscard]] std::optional<ResponseList> decode_responses(Reader& reader,
                                                           const ResponseCache& cache,
                                                           int set_size);
[[nodiscard]] std::optional<std::vector<std::uint64_t>> decode_unknown_ids(Reader& reader);

void write(Writer& writer, const Status& status);
[[nodiscard]] Status read_status(Reader& reader);

}  // namespace rueda
