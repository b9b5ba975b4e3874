#include "plan/stall_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/strings.h"
#include "plan/response_builder.h"

namespace rueda {

Duration until_first_report(Duration warning, Duration error) {
  constexpr Duration never{};
  if (warning <= never) return std::max(error, never);
  return error <= never ? warning : std::min(warning, error);
}

// Inner nodes report what they have seen of a name after half the time, so that the root knows it
// when it judges.
Duration StallWatch::report_interval() const {
  return until_first_report(limits_.warning, error()) / 2;
}

Duration StallWatch::error() const {
  return limits_.error ? limits_.error() : Duration::zero();
}

Duration StallWatch::error_of(const Waiting& waiting) const {
  const Duration error = this->error();
  return error <= Duration::zero() ? error : std::max(error, waiting.least);
}

Time StallWatch::first_report(const Waiting& waiting) const {
  return waiting.since + (tree_.is_root() ? until_first_report(limits_.warning, error_of(waiting))
                                          : report_interval());
}

Time StallWatch::later_report(const Waiting& waiting, Time now) const {
  const Time since = waiting.since;
  if (!tree_.is_root()) return now + report_interval();
  const bool warns = limits_.warning > Duration::zero();
  const Time first = since + limits_.warning;  // may still be in the future
  const Time next = !warns ? now + report_interval() : now < first ? first : now + limits_.warning;
  const Time error = since + error_of(waiting);
  return error > now ? std::min(next, error) : next;
}

void StallWatch::begin(Waiting& waiting, Time since) {
  heed_change();
  waiting.since = since;
  schedule(waiting);
}

void StallWatch::schedule(Waiting& waiting) {
  // Once reported, a tensor keeps its rhythm, even if its age is estimated again. Nor does a report
  // that waits for answers come earlier.
  if (!waiting.reported && !waiting.inquiring) waiting.next_report = first_report(waiting);
  next_check_ = std::min(next_check_, waiting.next_report);
}

void StallWatch::report_soon(Waiting& waiting, Time now) {
  if (tree_.is_root() || !waiting.reported) return;
  waiting.next_report = std::min(waiting.next_report, now + report_interval() / 32);
  next_check_ = std::min(next_check_, waiting.next_report);
}

std::optional<Time> StallWatch::next_deadline() const {
  if (report_interval() == Duration::zero() || tensors_.empty()) return std::nullopt;
  if (next_check_ == Time::max()) return std::nullopt;
  return next_check_;
}

void StallWatch::heed_change() {
  constexpr Duration for_ever = std::chrono::hours(1'000'000);
  const Duration before = std::exchange(judged_by_, error());
  if (before == judged_by_) return;
  for (auto& [name, tensor] : tensors_) {
    Waiting& waiting = tensor.waiting;
    const Duration promised = before > Duration::zero() ? before : for_ever;
    if (tensor.self_ready) waiting.least = std::max(waiting.least, promised);
    schedule(waiting);
  }
}

ResponseList StallWatch::check(Time now, std::vector<Announcement>& reports) {
  ResponseList responses;
  heed_change();
  if (report_interval() == Duration::zero() || now < next_check_) return responses;
  next_check_ = Time::max();
  for (auto& [name, tensor] : tensors_) {
    if (tensor.complete) continue;
    Waiting& waiting = tensor.waiting;
    if (now >= waiting.next_report) {
      if (tree_.is_root()) {
        if (inquire(tensor, now)) continue;
        judge(name, tensor, now, responses);
      } else {
        reports.push_back(tensors_.announce(tensor, true));
        reports.back().age = to_seconds(now - waiting.since);
      }
      waiting.reported = true;
      waiting.next_report = later_report(waiting, now);
    }
    next_check_ = std::min(next_check_, waiting.next_report);
  }
  return responses;
}

std::vector<int> StallWatch::missing_beside(const std::vector<int>& ready) const {
  std::vector<bool> here(static_cast<std::size_t>(tree_.size()), false);
  for (const int rank : ready) here[static_cast<std::size_t>(rank)] = true;
  for (const int rank : joined_.ranks()) here[static_cast<std::size_t>(rank)] = true;
  std::vector<int> missing;
  for (int rank = 0; rank < tree_.size(); ++rank) {
    if (!here[static_cast<std::size_t>(rank)]) missing.push_back(rank);
  }
  return missing;
}

// Whether the due report on `tensor` has to wait for answers of missing ranks; true at most once.
bool StallWatch::inquire(AnnouncedTensor& tensor, Time now) {
  Waiting& waiting = tensor.waiting;
  if (!limits_.asks_whereabouts || std::exchange(waiting.inquiring, false)) return false;
  const auto until = inquiry_.begin(missing_beside(tensors_.ready_ranks(tensor)), now);
  if (!until) return false;
  waiting.inquiring = true;
  waiting.next_report = *until;
  next_check_ = std::min(next_check_, *until);
  return true;
}

void StallWatch::hear_whereabouts(int rank, std::string text, Time now) {
  if (!inquiry_.hear(rank, std::move(text), now)) return;
  for (auto& [name, tensor] : tensors_) {
    if (tensor.waiting.inquiring) tensor.waiting.next_report = now;
  }
  next_check_ = now;
}

namespace {

// A request of the tensor: one that a rank can take part in, if there is any. What a rank refuses
// does not tell which collective the others have called.
const Request& told_by(const AnnouncedTensor& tensor) {
  const Request* refusal = nullptr;
  const auto wanted_in = [&](const auto& variants) -> const Request* {
    for (const auto& variant : variants) {
      if (variant.request.error.ok()) return &variant.request;
      if (refusal == nullptr) refusal = &variant.request;
    }
    return nullptr;
  };
  if (const Request* wanted = wanted_in(tensor.variants)) return *wanted;
  for (const auto& [child, announcement] : tensor.partial_children) {
    if (const Request* wanted = wanted_in(announcement.variants)) return *wanted;
  }
  return *refusal;
}

std::string kind_of(const Request& request) {
  if (request.error.ok()) return std::string(name_of(request.collective));
  return str("refused: ", request.error.to_string());
}

}  // namespace

void StallWatch::judge(const std::string& name, const AnnouncedTensor& tensor, Time now,
                       ResponseList& responses) const {
  const std::vector<int> ready = tensors_.ready_ranks(tensor);
  const std::vector<int> missing = missing_beside(ready);
  if (missing.empty()) return;  // the last announcements are in transit

  const Time since = tensor.waiting.since;
  const Duration error = error_of(tensor.waiting);
  const bool fails = error > Duration::zero() && now >= since + error;
  // It became due before a longer timeout was requested.
  if (!fails && (limits_.warning <= Duration::zero() || now < since + limits_.warning)) return;
  const AnnouncedTensor::Groups groups = tensor.groups();
  Response response;
  response.kind = fails ? ResponseKind::error : ResponseKind::warning;
  response.request.name = name;
  const Request& told = told_by(tensor);
  response.request.collective = told.collective;
  response.request.group = *groups.rbegin();
  response.status =
      Status(ErrorCode::stalled,
             str(naming_.quoted(name), " (", kind_of(told), ") has waited for ",
                 std::round(to_seconds(now - since) * 10) / 10, " s: submitted by ",
                 naming_.describe(ready), ", missing on ", naming_.describe(missing),
                 inquiry_.report(missing, now,
                                 [this](const auto& ranks) { return naming_.describe(ranks); })),
             naming_.world_rank(missing.front()), {.tensor = name});
  if (!fails) {
    responses.push_back(std::move(response));
    return;
  }
  // A group fails once: a rank that got the first error would seem to have missed the second.
  const auto same_group = [&](const Response& other) {
    return other.kind == ResponseKind::error && groups.size() == 1 && !groups.begin()->empty() &&
           other.request.group == *groups.begin();
  };
  if (std::any_of(responses.begin(), responses.end(), same_group)) return;
  ResponseBuilder::add_error(responses, response, groups);
}

}  // namespace rueda
