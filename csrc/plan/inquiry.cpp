#include "plan/inquiry.h"

#include <algorithm>

#include "core/strings.h"
#include "plan/wire.h"

namespace rueda {

namespace {

bool is_control_character(char character) {
  const auto value = static_cast<unsigned char>(character);
  return value < 0x20 || value == 0x7f;
}

// Does not cut within a UTF-8 character.
void cut(std::string& text, std::size_t limit) {
  if (text.size() <= limit) return;
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xc0) == 0x80) --limit;
  text.resize(limit);
}

}  // namespace

std::span<const int> Inquiry::asked_of(std::span<const int> missing) {
  return missing.first(std::min(missing.size(), max_asked));
}

const std::string* Inquiry::Answer::said(Time now) const {
  if (text) return &*text;
  return earlier && now - asked < timeout ? &*earlier : nullptr;
}

std::optional<Time> Inquiry::begin(std::span<const int> missing, Time now) {
  std::optional<Time> until;
  for (const int rank : asked_of(missing)) {
    const auto [known, is_new] = answers_.try_emplace(rank, Answer{now, {}, {}});
    Answer& answer = known->second;
    // Its answer to another report a moment ago is still true.
    const Duration age = now - answer.asked;
    if (age >= timeout) {
      answer = {now, {}, age < 2 * timeout ? std::move(answer.text) : std::nullopt};
    }
    if (is_new || age >= timeout) questions_.push_back(rank);
    if (!answer.text) until = std::max(until.value_or(now), answer.asked + timeout);
  }
  return until;
}

bool Inquiry::is_settled(Time now) const {
  return std::all_of(answers_.begin(), answers_.end(), [now](const auto& item) {
    const Answer& answer = item.second;
    return answer.text || now - answer.asked >= timeout;  // nobody waits for it any more
  });
}

bool Inquiry::hear(int rank, std::string text, Time now) {
  const auto asked = answers_.find(rank);
  if (asked == answers_.end() || asked->second.text) return false;
  asked->second.text = std::move(text);
  return is_settled(now);
}

std::string Inquiry::report(
    std::span<const int> missing, Time now,
    const std::function<std::string(const std::vector<int>&)>& describe) const {
  std::vector<std::pair<std::string, std::vector<int>>> places;  // in the order of the ranks
  for (const int rank : asked_of(missing)) {
    const auto known = answers_.find(rank);
    if (known == answers_.end()) continue;
    const std::string silence =
        str("silent: it has not said within ", to_seconds(timeout), " s where it is");
    const std::string* said = known->second.said(now);
    const std::string& text = said != nullptr ? *said : silence;
    if (text.empty()) continue;
    const auto same = std::find_if(places.begin(), places.end(),
                                   [&](const auto& place) { return place.first == text; });
    if (same == places.end()) {
      places.push_back({text, {rank}});
    } else {
      same->second.push_back(rank);
    }
  }
  std::string report;
  for (const auto& [text, ranks] : places) {
    report += str("; ", describe(ranks), ranks.size() == 1 ? " is " : " are ", text);
  }
  return report;
}

// --- Messages

std::vector<std::byte> encode_whereabouts_question(int set_id) {
  Writer writer;
  writer.integer(set_id);
  return writer.take();
}

std::optional<int> decode_whereabouts_question(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  const std::int64_t set_id = reader.integer();
  if (!reader.ok() || !reader.at_end() || set_id != static_cast<int>(set_id)) return std::nullopt;
  return static_cast<int>(set_id);
}

std::vector<std::byte> encode(const WhereaboutsAnswer& answer) {
  std::string text = answer.text;
  cut(text, max_whereabouts);
  std::replace_if(text.begin(), text.end(), is_control_character, ' ');
  Writer writer;
  writer.integer(answer.set_id);
  writer.text(text);
  return writer.take();
}

std::optional<WhereaboutsAnswer> decode_whereabouts_answer(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  const std::int64_t set_id = reader.integer();
  std::string text = reader.text();
  const bool is_sound = reader.ok() && reader.at_end() && set_id == static_cast<int>(set_id) &&
                        text.size() <= max_whereabouts &&
                        std::none_of(text.begin(), text.end(), is_control_character);
  if (!is_sound) return std::nullopt;
  return WhereaboutsAnswer{static_cast<int>(set_id), std::move(text)};
}

}  // namespace rueda
