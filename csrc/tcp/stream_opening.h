// How a stream begins, after the two ranks have authenticated each other as in
// transport/handshake.h:
//
//   the rank that opens it               the peer
//                                     ←  challenge  a random word
//   answer     a random word and
//              the rank's proof       →  (and chunks at once)
//                                     ←  confirmation  the peer's proof (and then receipts)
//
// The proofs cover both words, so nothing overheard on another stream opens or confirms one. Each
// message is the payload of a frame. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/key.h"

namespace rueda {

class StreamOpening {
 public:
  static constexpr std::size_t word_bytes = 32;
  static constexpr std::size_t challenge_bytes = word_bytes;
  static constexpr std::size_t answer_bytes = word_bytes + sizeof(Digest);
  static constexpr std::size_t confirmation_bytes = sizeof(Digest);

  // For a stream over which rank `from` sends to rank `to`. `key`: the world's, for streams only.
  StreamOpening(const Key& key, int from, int to);

  // --- For `to`
  [[nodiscard]] std::span<const std::byte> challenge() const { return bytes_of(own_word_); }
  // The confirmation; nullopt if this is not `from`'s answer.
  [[nodiscard]] std::optional<Digest> confirm(std::span<const std::byte> answer);

  // --- For `from`
  [[nodiscard]] std::vector<std::byte> answer(std::span<const std::byte> challenge);
  // Call after answer().
  [[nodiscard]] bool is_confirmation(std::span<const std::byte> payload) const;

 private:
  [[nodiscard]] Digest proof(std::string_view step, std::string_view called,
                             std::string_view calling) const;

  const Key& key_;
  const std::string from_;
  const std::string to_;
  const std::string own_word_;
  std::string other_word_;
};

}  // namespace rueda
