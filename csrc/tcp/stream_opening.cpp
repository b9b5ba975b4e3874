#include "tcp/stream_opening.h"

#include "transport/socket.h"

namespace rueda {

namespace {

std::string word_in(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

StreamOpening::StreamOpening(const Key& key, int from, int to)
    : key_(key), from_(std::to_string(from)), to_(std::to_string(to)), own_word_(random_name()) {}

Digest StreamOpening::proof(std::string_view step, std::string_view called,
                            std::string_view calling) const {
  return key_.proof({step, from_, to_, called, calling});
}

std::optional<Digest> StreamOpening::confirm(std::span<const std::byte> answer) {
  if (answer.size() != answer_bytes) return std::nullopt;
  other_word_ = word_in(answer.first(word_bytes));
  if (!equal_in_constant_time(answer.subspan(word_bytes),
                              proof("answer", own_word_, other_word_))) {
    return std::nullopt;
  }
  return proof("confirmation", own_word_, other_word_);
}

std::vector<std::byte> StreamOpening::answer(std::span<const std::byte> challenge) {
  other_word_ = word_in(challenge);
  const auto word = bytes_of(own_word_);
  const Digest shown = proof("answer", other_word_, own_word_);
  std::vector<std::byte> bytes(word.begin(), word.end());
  bytes.insert(bytes.end(), shown.begin(), shown.end());
  return bytes;
}

bool StreamOpening::is_confirmation(std::span<const std::byte> payload) const {
  return equal_in_constant_time(payload, proof("confirmation", other_word_, own_word_));
}

}  // namespace rueda
