#include "plan/survivor_agreement.h"

#include <algorithm>
#include <cassert>

#include "core/strings.h"
#include "plan/rank_list.h"

namespace rueda {

SurvivorAgreement::SurvivorAgreement(Settings settings, Time now)
    : settings_(std::move(settings)),
      known_(settings_.rank, settings_.members, settings_.epoch),
      signs_(settings_.timeout, now) {
  assert(contains(settings_.members, settings_.rank));
  for (const int member : settings_.members) {
    if (member == settings_.rank) continue;
    const auto heard = settings_.heard.find(member);
    signs_.begin(member, heard != settings_.heard.end() ? std::min(heard->second, now) : now);
    peers_[member] = {};
  }
  begin_proposal(settings_.epoch + 1, now);
  decide(now);
}

std::optional<std::uint64_t> SurvivorAgreement::epoch_of(std::span<const std::byte> message) {
  const auto decoded = decode_survivor_message(message);
  const auto* const view = decoded ? std::get_if<SurvivorView>(&*decoded) : nullptr;
  if (view == nullptr) return std::nullopt;
  return view->epoch;
}

// --- What comes in ---------------------------------------------------------------------------

void SurvivorAgreement::notice_pause(Time now) {
  if (signs_.notice_call(now)) settings_.was_stopped = was_stopped_since_decision_ = true;
}

void SurvivorAgreement::receive(int member, std::span<const std::byte> message, Time now) {
  if (decision_ && !decision_->ok()) return;
  const auto decoded = decode_survivor_message(message);
  if (!decoded || member == settings_.rank) {
    ++ignored_;
    return;
  }
  if (!is_over()) {
    notice_pause(now);
    if (peers_.contains(member)) signs_.hear(member, now);
  }
  if (const auto* const view = std::get_if<SurvivorView>(&*decoded)) {
    receive_view(member, *view, now);
  } else {
    receive_has_gone_on(std::get<EpochHasGoneOn>(*decoded), now);
  }
}

void SurvivorAgreement::receive_view(int member, const SurvivorView& view, Time now) {
  const std::uint64_t reached = is_formed_ ? decision_->value().epoch : known_.epoch();
  if (view.epoch < reached) latecomers_.insert(member);
  if (view.epoch < reached || is_formed_) return;
  const auto found = peers_.find(member);
  if (found == peers_.end() || (view.epoch == known_.epoch() && !known_.is_plausible(view))) {
    ++ignored_;
    return;
  }
  Peer& peer = found->second;
  if (view.epoch > known_.epoch()) {
    peer.has_gone_on = true;
    if (const std::vector<int>* const members = find_world(view.epoch)) {
      receive_has_gone_on({view.epoch, *members, {}}, now);
    }
    if (is_over() || view.epoch > known_.epoch()) {
      answers_.insert(member);  // when it gets this process's knowledge, it says what became of it
    } else {
      receive_view(member, view, now);
    }
    return;
  }
  const Said said{view.proposal, known_.outcome_of(view)};
  peer.said = said;
  known_.merge(view, settings_.was_stopped);
  update(&said, now);
  const bool gets_beats = contains(own_.outcome.survivors, member);
  if (is_over() || view.epoch != known_.epoch() || view.is_answer) return;
  // It may lack something that changed nothing here, so that it was not told.
  const bool may_lack = (!known_.view().broken.empty() || !known_.view().given_up.empty()) &&
                        said.outcome != own_.outcome;
  if (view.knows_nothing || !gets_beats || may_lack) answers_.insert(member);
}

// The members of a world on which this process has decided, or others have; null if unknown.
const std::vector<int>* SurvivorAgreement::find_world(std::uint64_t epoch) const {
  if (decision_ && decision_->value().epoch == epoch) return &decision_->value().members;
  return known_.find_given_up(epoch);
}

void SurvivorAgreement::receive_has_gone_on(const EpochHasGoneOn& message, Time now) {
  if (is_formed_ || message.epoch <= known_.epoch()) return;
  if (!contains(message.members, settings_.rank)) {
    stop(str("the others have gone on without rank ", known_.own_rank(), " (epoch ", message.epoch,
             ": ", describe_ranks(known_.ranks_of(message.members)), ")",
             message.cause.ok() ? "" : ": " + message.cause.to_string()));
    return;
  }
  if (!without(message.members, known_.members()).empty()) {
    ++ignored_;
    return;
  }
  // It may also complete a world that this process is forming meanwhile.
  if (!formed_by_others_ || formed_by_others_->epoch < message.epoch) formed_by_others_ = message;
  decide(now);
}

std::vector<int> SurvivorAgreement::silent(Time now) {
  std::vector<int> members;
  if (is_over()) return members;
  notice_pause(now);
  for (const int member : own_.outcome.survivors) {
    if (member == settings_.rank || !known_.reaches(member)) continue;
    if (now >= signs_.silence_end(member)) members.push_back(member);
  }
  return members;
}

void SurvivorAgreement::excuse(int member, Time now) {
  if (is_over()) return;
  notice_pause(now);
  signs_.excuse(member, now);
}

// Whether a member that has ended cannot have decided on a world without this process. Otherwise it
// would have told this process before, or each would have missed the other's signs of life.
bool SurvivorAgreement::is_witness_of_end(int member, const Peer& peer, Time now) const {
  return !settings_.was_stopped && !peer.has_gone_on &&
         (settings_.is_one_host || now - signs_.heard(member) <= settings_.timeout / 2) &&
         (!peer.said || contains(peer.said->outcome.survivors, settings_.rank));
}

void SurvivorAgreement::lose(int member, Loss kind, const Status& cause, Time now) {
  if (is_over()) return;
  notice_pause(now);
  const auto found = peers_.find(member);
  if (found == peers_.end() || known_.has_ended(member)) return;
  const bool has_ended = kind == Loss::ended && is_witness_of_end(member, found->second, now);
  if (!known_.reaches(member) && !(has_ended && settings_.is_one_host)) return;
  if (has_ended) {
    known_.add_ended(member, shortened(cause));
  } else {
    known_.add_unreachable(member, shortened(cause));
  }
  update(nullptr, now);
}

void SurvivorAgreement::advance(Time now) {
  if (is_over()) return;
  notice_pause(now);
  for (const int member : silent(now)) {
    const Duration silence = now - signs_.heard(member);
    const int rank = known_.rank_of(member);
    known_.add_unreachable(
        member, Status(ErrorCode::peer_lost,
                       str("rank ", known_.own_rank(), " has not heard from rank ", rank, " for ",
                           to_seconds(silence), " s"),
                       rank, {.reason = ErrorReason::unreachable}));
  }
  update(nullptr, now);
  if (is_over() || now < signs_.next_beat()) return;
  beats_ = true;
  signs_.give(now);
}

std::optional<Time> SurvivorAgreement::next_deadline() const {
  if (is_over()) return std::nullopt;
  Time deadline = signs_.next_beat();
  for (const int member : own_.outcome.survivors) {
    if (member == settings_.rank) continue;
    deadline = std::min(deadline, signs_.silence_end(member));
  }
  const auto objections = decision_ ? std::nullopt : objections_until();
  if (objections && *objections > signs_.last_call()) deadline = std::min(deadline, *objections);
  if (!decision_ && ends_until_ > signs_.last_call()) deadline = std::min(deadline, ends_until_);
  if (cut_off_since_) deadline = std::min(deadline, *cut_off_since_ + signs_.beat());
  return deadline;
}

// --- What follows from it --------------------------------------------------------------------

// `said`: what was received; known_ already includes it.
void SurvivorAgreement::update(const Said* said, Time now) {
  const bool is_behind = said != nullptr && said->proposal > own_.proposal;
  const SurvivorOutcome outcome = known_.outcome();
  // Learning that a lost member has ended is no reason to withdraw a decision.
  const bool is_same = decision_ ? outcome.survivors == own_.outcome.survivors &&
                                       outcome.given_up == own_.outcome.given_up
                                 : outcome == own_.outcome;
  if (!is_same || is_behind) {
    if (decision_) withdraw();
    const bool is_heard_of = is_behind && said->outcome == known_.outcome();
    begin_proposal(is_heard_of ? said->proposal
                               : std::max(own_.proposal, said != nullptr ? said->proposal : 0) + 1,
                   now);
  }
  decide(now);
}

void SurvivorAgreement::begin_proposal(std::uint64_t number, Time now) {
  known_.propose(number);
  own_ = {number, known_.outcome()};
  for (auto& [member, peer] : peers_) {
    const bool is_lost = !contains(own_.outcome.survivors, member);
    if (is_lost != peer.lost_since.has_value()) {
      peer.lost_since = is_lost ? std::optional(now) : std::nullopt;
    }
  }
  tells_all_ = true;
  signs_.give(now);
}

void SurvivorAgreement::withdraw() {
  const Decision& decided = decision_->value();
  known_.give_up(decided.members, decided.epoch);
  decision_.reset();
}

void SurvivorAgreement::not_formed(std::uint64_t epoch, Time now) {
  if (is_over() || !decision_ || decision_->value().epoch != epoch) return;
  notice_pause(now);
  withdraw();
  begin_proposal(own_.proposal + 1, now);
  decide(now);
}

void SurvivorAgreement::formed(Time now) {
  assert(decision_ && decision_->ok());
  notice_pause(now);
  is_formed_ = true;
  tells_all_ = beats_ = false;
  answers_.clear();
}

bool SurvivorAgreement::all_say_the_same() const {
  const std::vector<int>& survivors = own_.outcome.survivors;
  return std::all_of(survivors.begin(), survivors.end(), [&](int member) {
    return member == settings_.rank || peers_.at(member).said == own_;
  });
}

// Until when to wait for what lost members that are still heard know: with that, another member may
// be the one to go.
std::optional<Time> SurvivorAgreement::objections_until() const {
  std::optional<Time> until;
  for (const auto& [member, peer] : peers_) {
    const bool agrees = peer.said && !contains(peer.said->outcome.survivors, member);
    if (!peer.lost_since || agrees || known_.has_ended(member) || !known_.reaches(member)) {
      continue;
    }
    const Time end = std::min(signs_.heard(member), *peer.lost_since) + settings_.timeout / 2;
    if (!until || *until < end) until = end;
  }
  return until;
}

void SurvivorAgreement::decide(Time now) {
  if (decision_) return;
  if (formed_by_others_) {
    continue_from(*std::exchange(formed_by_others_, std::nullopt), now);
  }
  if (contains(own_.outcome.survivors, settings_.rank)) {
    cut_off_since_.reset();
    if (all_say_the_same() && objections_until().value_or(now) <= now) conclude(now);
  } else if (known_.reaches_any_of(own_.outcome.survivors)) {
    cut_off_since_.reset();  // one of those that stay will report the outcome
  } else if (!cut_off_since_) {
    cut_off_since_ = now;  // gives others time to confirm what this process has seen
  } else if (now - *cut_off_since_ >= signs_.beat()) {
    stop(str("rank ", known_.own_rank(), " cannot reach the surviving ",
             describe_ranks(known_.ranks_of(own_.outcome.survivors))),
         ErrorReason::unreachable);
  }
}

void SurvivorAgreement::conclude(Time now) {
  const std::vector<int>& survivors = own_.outcome.survivors;
  const std::vector<std::vector<int>>& given_up = own_.outcome.given_up;
  const auto is_majority_of = [&](const std::vector<int>& members) {
    return has_quorum(survivors, members, own_.outcome.ended);
  };
  const auto left = str(survivors.size(), " of ", settings_.members.size(), " ranks");
  if (!is_majority_of(known_.members()) ||
      !std::all_of(given_up.begin(), given_up.end(), is_majority_of)) {
    for (const auto& [member, peer] : peers_) {
      const bool is_awaited = settings_.is_one_host && !settings_.was_stopped && peer.lost_since &&
                              !known_.has_ended(member);
      if (is_awaited) ends_until_ = std::max(ends_until_, *peer.lost_since + settings_.timeout);
    }
    if (now < ends_until_) return;
    stop(str(left, " cannot continue: the other ranks may be alive and have the majority"),
         ErrorReason::unreachable);
  } else if (survivors.size() < static_cast<std::size_t>(std::max(settings_.min_size, 0))) {
    stop(str(left, " are left, fewer than ", settings_.min_size, " (min_np)"));
  } else {
    decision_ = Decision{survivors, own_.proposal, known_.lost(settings_.members, survivors)};
    was_stopped_since_decision_ = false;
  }
}

void SurvivorAgreement::stop(const std::string& why, ErrorReason reason) {
  std::string text = why;
  int first = -1;
  for (const auto& [member, peer] : peers_) {
    const auto& broken = known_.view().broken;
    const auto found = broken.find({settings_.rank, member});
    const Status cause =
        found != broken.end() ? found->second : known_.cause_of(member, own_.outcome.survivors);
    if (cause.ok()) continue;
    const int rank = known_.rank_of(member);
    text += str("; rank ", rank, ": ", cause.to_string());
    if (first < 0) first = rank;
  }
  decision_ = Status(ErrorCode::peer_lost, std::move(text), first, {.reason = reason});
  tells_all_ = beats_ = false;
  answers_.clear();
  latecomers_.clear();
}

// The world in which this process was to take part was formed without its knowledge, and has broken
// since because it did not take part.
void SurvivorAgreement::continue_from(const EpochHasGoneOn& message, Time now) {
  for (const int member : without(known_.members(), message.members)) {
    peers_.erase(member);
    signs_.forget(member);
    answers_.erase(member);
  }
  known_.continue_from(message, own_.outcome.survivors);
  for (auto& [member, peer] : peers_) {
    peer = {};
    signs_.begin(member, now);
  }
  begin_proposal(std::max(own_.proposal, message.epoch) + 1, now);
}

// --- What goes out ---------------------------------------------------------------------------

std::vector<SurvivorAgreement::Message> SurvivorAgreement::take_messages() {
  std::vector<Message> messages;
  const auto tell = [&](int member, bool is_answer) {
    SurvivorView view = known_.view();
    view.knows_nothing = !peers_.at(member).said;
    view.is_answer = is_answer;
    messages.push_back({member, encode(view)});
    answers_.erase(member);
  };
  if (std::exchange(tells_all_, false)) {
    beats_ = false;
    for (const auto& peer : peers_) {
      if (!known_.has_ended(peer.first)) tell(peer.first, false);
    }
  }
  if (std::exchange(beats_, false)) {
    for (const int member : own_.outcome.survivors) {
      if (member != settings_.rank) tell(member, false);
    }
  }
  for (const int member : std::exchange(answers_, {})) tell(member, true);
  for (const int member : std::exchange(latecomers_, {})) {
    EpochHasGoneOn answer{known_.epoch(), known_.members(),
                          known_.cause_of(member, own_.outcome.survivors)};
    if (is_formed_) {
      answer.epoch = decision_->value().epoch;
      answer.members = decision_->value().members;
    }
    messages.push_back({member, encode(answer)});
  }
  return messages;
}

}  // namespace rueda
