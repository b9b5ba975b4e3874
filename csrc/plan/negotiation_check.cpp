#include "plan/negotiation_check.h"

#include <algorithm>

namespace rueda {

namespace {

constexpr double max_age = 1e9;  // seconds; more would overflow the clock

bool in_set(int rank, int set_size) {
  return rank >= 0 && rank < set_size;
}

bool all_in_set(const std::vector<int>& ranks, int set_size) {
  return std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return in_set(rank, set_size); });
}

// Sorted, without duplicates, and within the set.
bool is_rank_list(const std::vector<int>& ranks, int set_size) {
  return all_in_set(ranks, set_size) &&
         std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
}

// What validate() guarantees for a request without an error; one with an error may hold anything.
bool is_plausible(const Request& request, int set_size) {
  return !request.error.ok() || validate(request, set_size).ok();
}

bool is_plausible(const Announcement& announcement, int set_size) {
  const auto& variants = announcement.variants;
  if (variants.empty() || (announcement.amends && variants.size() != 1)) return false;
  const bool whole = variants.size() == 1 && !announcement.partial && !announcement.amends;
  for (const Variant& variant : variants) {
    if (variant.request.name != variants.front().request.name) return false;
    if (!is_plausible(variant.request, set_size)) return false;
    if (!is_rank_list(variant.ranks, set_size) || variant.ranks.empty() != whole) return false;
    if (announcement.amends && variant.request.error.ok()) return false;
  }
  for (const auto& [rank, rows] : announcement.first_extents) {
    if (!in_set(rank, set_size)) return false;
  }
  const bool aged = announcement.age >= 0 && announcement.age <= max_age;  // false for NaN
  return aged && is_rank_list(announcement.absent, set_size);
}

bool is_plausible_execution(const Response& response, int set_size) {
  const Request& request = response.request;
  const bool gathers = request.collective == Collective::allgather;
  const std::size_t extents = gathers ? static_cast<std::size_t>(set_size) : 0;
  return response.status.ok() && request.error.ok() && is_plausible(request, set_size) &&
         response.first_extents.size() == extents &&
         std::all_of(response.first_extents.begin(), response.first_extents.end(),
                     [](std::int64_t extent) { return extent >= 0; });
}

bool is_plausible(const Response& response, int set_size) {
  if (!is_rank_list(response.absent, set_size)) return false;
  switch (response.kind) {
    case ResponseKind::execute: return is_plausible_execution(response, set_size);
    case ResponseKind::error:
    case ResponseKind::warning: return !response.status.ok();
    case ResponseKind::joined: return in_set(response.rank, set_size);
    case ResponseKind::left: return !response.status.ok() && in_set(response.rank, set_size);
  }
  return false;
}

}  // namespace

bool is_plausible(const UpMessage& message, int set_size) {
  return all_in_set(message.joined, set_size) && all_in_set(message.leaving, set_size) &&
         std::all_of(message.retiring.begin(), message.retiring.end(),
                     [&](const RetiringRank& it) { return in_set(it.rank, set_size); }) &&
         std::all_of(message.announcements.begin(), message.announcements.end(),
                     [&](const Announcement& it) { return is_plausible(it, set_size); });
}

bool is_plausible(const ResponseList& responses, int set_size) {
  return std::all_of(responses.begin(), responses.end(),
                     [&](const Response& it) { return is_plausible(it, set_size); });
}

}  // namespace rueda
