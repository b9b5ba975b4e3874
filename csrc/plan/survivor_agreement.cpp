#include "plan/survivor_agreement.h"

#include <algorithm>
#include <cassert>
#include <iterator>

#include "core/strings.h"
#include "plan/rank_list.h"

namespace rueda {

namespace {

template <class Key, class Value>
std::vector<Key> keys_of(const std::map<Key, Value>& items) {
  std::vector<Key> keys;
  for (const auto& item : items) keys.push_back(item.first);
  return keys;
}

std::vector<int> without(const std::vector<int>& all, const std::vector<int>& some) {
  std::vector<int> rest;
  std::set_difference(all.begin(), all.end(), some.begin(), some.end(), std::back_inserter(rest));
  return rest;
}

// How often a member gives a sign of life.
Duration beat_of(Duration patience) {
  return patience / 4;
}

Status does_not_reach(int observer, int member, const Status& cause) {
  return Status(ErrorCode::peer_lost, str("rank ", observer, " does not reach rank ", member),
                observer)
      .because(cause);
}

}  // namespace

SurvivorAgreement::SurvivorAgreement(Settings settings, Time now)
    : settings_(std::move(settings)), members_(settings_.members), last_call_(now) {
  assert(contains(members_, settings_.rank));
  view_.epoch = settings_.epoch;
  for (const int member : members_) {
    if (member == settings_.rank) continue;
    const auto heard = settings_.heard.find(member);
    peers_[member].silence =
        Silence(heard != settings_.heard.end() ? std::min(heard->second, now) : now);
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

SurvivorAgreement::Outcome SurvivorAgreement::outcome_of(const SurvivorView& view) const {
  Outcome outcome;
  outcome.ended = keys_of(view.ended);
  std::set<BrokenLink> broken;
  for (const auto& item : view.broken) broken.insert(item.first);
  outcome.survivors = choose_survivors(without(members_, outcome.ended), broken);
  // A member that has not decided on a world and has made a later proposal never will.
  for (const auto& [members, world] : view.given_up) {
    const bool is_possible = std::all_of(members.begin(), members.end(), [&](int member) {
      const auto reached = view.reached.find(member);
      return world.decided.contains(member) || reached == view.reached.end() ||
             reached->second <= world.epoch;
    });
    if (is_possible) outcome.given_up.push_back(members);
  }
  return outcome;
}

bool SurvivorAgreement::is_plausible(const SurvivorView& view) const {
  const auto is_member = [&](int number) { return contains(members_, number); };
  return std::all_of(view.ended.begin(), view.ended.end(),
                     [&](const auto& item) { return is_member(item.first); }) &&
         std::all_of(view.reached.begin(), view.reached.end(),
                     [&](const auto& item) { return is_member(item.first); }) &&
         std::all_of(view.broken.begin(), view.broken.end(), [&](const auto& item) {
           return is_member(item.first.observer) && is_member(item.first.member);
         });
}

// --- What comes in ---------------------------------------------------------------------------

// A process that was stopped has measured no silence but its own.
void SurvivorAgreement::notice_pause(Time now) {
  if (now - last_call_ > beat_of(settings_.patience) + settings_.patience / 2) {
    settings_.was_stopped = was_stopped_since_decision_ = true;
    for (auto& peer : peers_) peer.second.silence.hear(now);
  } else {
    const Duration late = lateness(now, next_beat_, last_call_);
    for (auto& peer : peers_) peer.second.silence.miss(late);
  }
  last_call_ = now;
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
    if (const auto found = peers_.find(member); found != peers_.end())
      found->second.silence.hear(now);
  }
  if (const auto* const view = std::get_if<SurvivorView>(&*decoded)) {
    receive_view(member, *view, now);
  } else {
    receive_has_gone_on(std::get<EpochHasGoneOn>(*decoded), now);
  }
}

void SurvivorAgreement::receive_view(int member, const SurvivorView& view, Time now) {
  const std::uint64_t reached = is_formed_ ? decision_->value().epoch : view_.epoch;
  if (view.epoch < reached) latecomers_.insert(member);
  if (view.epoch < reached || is_formed_) return;
  const auto found = peers_.find(member);
  if (found == peers_.end() || (view.epoch == view_.epoch && !is_plausible(view))) {
    ++ignored_;
    return;
  }
  Peer& peer = found->second;
  if (view.epoch > view_.epoch) {
    peer.has_gone_on = true;
    if (const std::vector<int>* const members = find_world(view.epoch)) {
      receive_has_gone_on({view.epoch, *members, {}}, now);
    }
    if (is_over() || view.epoch > view_.epoch) {
      answers_.insert(member);  // told what this process knows, it says what has become of it
    } else {
      receive_view(member, view, now);
    }
    return;
  }
  const Said said{view.proposal, outcome_of(view)};
  peer.said = said;
  merge(view);
  update(&said, now);
  const bool gets_beats = contains(own_.outcome.survivors, member);
  if (is_over() || view.epoch != view_.epoch || view.is_answer) return;
  // It may lack something from which nothing followed here, so that it was not told.
  const bool may_lack =
      (!view_.broken.empty() || !view_.given_up.empty()) && said.outcome != own_.outcome;
  if (view.knows_nothing || !gets_beats || may_lack) answers_.insert(member);
}

// The members of a world on which this process has decided, or others.
const std::vector<int>* SurvivorAgreement::find_world(std::uint64_t epoch) const {
  if (decision_ && decision_->value().epoch == epoch) return &decision_->value().members;
  const auto found = std::find_if(view_.given_up.begin(), view_.given_up.end(),
                                  [&](const auto& item) { return item.second.epoch == epoch; });
  return found != view_.given_up.end() ? &found->first : nullptr;
}

void SurvivorAgreement::merge(const SurvivorView& view) {
  view_.ended.insert(view.ended.begin(), view.ended.end());
  view_.broken.insert(view.broken.begin(), view.broken.end());
  for (const auto& [members, world] : view.given_up) {
    GivenUp& known = view_.given_up[members];
    known.epoch = std::max(known.epoch, world.epoch);
    known.decided.insert(world.decided.begin(), world.decided.end());
  }
  for (const auto& [member, number] : view.reached) {
    std::uint64_t& known = view_.reached[member];
    known = std::max(known, number);
  }
  // Who does not reach this process is not reached by it either: so the choice between the two
  // does not depend on who says so first. Only a process that is frozen does not answer.
  if (settings_.was_stopped) return;
  for (const auto& [link, cause] : view.broken) {
    const BrokenLink back{settings_.rank, link.observer};
    if (link.member != settings_.rank || view_.broken.contains(back)) continue;
    view_.broken.emplace(back, shortened(does_not_reach(link.observer, settings_.rank, cause)));
  }
}

void SurvivorAgreement::receive_has_gone_on(const EpochHasGoneOn& message, Time now) {
  if (is_formed_ || message.epoch <= view_.epoch) return;
  if (!contains(message.members, settings_.rank)) {
    stop(str("the others have gone on without rank ", settings_.rank, " (epoch ", message.epoch,
             ": ", describe_ranks(message.members), ")",
             message.cause.ok() ? "" : ": " + message.cause.to_string()));
    return;
  }
  if (!without(message.members, members_).empty()) {
    ++ignored_;
    return;
  }
  // A world that this process is forming meanwhile may come to life with it.
  if (!formed_by_others_ || formed_by_others_->epoch < message.epoch) formed_by_others_ = message;
  decide(now);
}

void SurvivorAgreement::hear(int member, Time now) {
  if (is_over()) return;
  notice_pause(now);
  const auto found = peers_.find(member);
  if (found != peers_.end()) found->second.silence.hear(now);
}

std::vector<int> SurvivorAgreement::silent(Time now) const {
  std::vector<int> members;
  if (is_over()) return members;
  for (const int member : own_.outcome.survivors) {
    if (member == settings_.rank || view_.broken.contains({settings_.rank, member})) continue;
    if (now >= silence_end(member)) members.push_back(member);
  }
  return members;
}

void SurvivorAgreement::excuse(int member, Time now) {
  if (is_over()) return;
  notice_pause(now);
  if (now >= silence_end(member)) peers_.at(member).silence.excuse(now, settings_.patience);
}

// Whether a member that has ended cannot have decided on a world without this process. It would
// have told it so before, or have missed its signs of life for as long as this process its own.
bool SurvivorAgreement::is_witness_of_end(const Peer& peer, Time now) const {
  return !settings_.was_stopped && !peer.has_gone_on &&
         now - peer.silence.heard() <= settings_.patience / 2 &&
         (!peer.said || contains(peer.said->outcome.survivors, settings_.rank));
}

void SurvivorAgreement::lose(int member, Loss kind, const Status& cause, Time now) {
  if (is_over()) return;
  notice_pause(now);
  const auto found = peers_.find(member);
  const BrokenLink link{settings_.rank, member};
  if (found == peers_.end() || view_.ended.contains(member) || view_.broken.contains(link)) return;
  if (kind == Loss::ended && is_witness_of_end(found->second, now)) {
    view_.ended.emplace(member, shortened(cause));
  } else {
    view_.broken.emplace(link, shortened(cause));
  }
  update(nullptr, now);
}

void SurvivorAgreement::advance(Time now) {
  if (is_over()) return;
  notice_pause(now);
  for (const int member : silent(now)) {
    const Duration silence = now - peers_.at(member).silence.heard();
    view_.broken.try_emplace({settings_.rank, member},
                             Status(ErrorCode::peer_lost,
                                    str("rank ", settings_.rank, " has not heard of rank ", member,
                                        " for ", to_seconds(silence), " s"),
                                    member));
  }
  update(nullptr, now);
  if (is_over() || now < next_beat_) return;
  beats_ = true;
  next_beat_ = now + beat_of(settings_.patience);
}

std::optional<Time> SurvivorAgreement::next_deadline() const {
  if (is_over()) return std::nullopt;
  Time deadline = next_beat_;
  for (const int member : own_.outcome.survivors) {
    if (member == settings_.rank) continue;
    deadline = std::min(deadline, silence_end(member));
  }
  const auto objections = decision_ ? std::nullopt : objections_until();
  if (objections && *objections > last_call_) deadline = std::min(deadline, *objections);
  if (cut_off_since_) {
    deadline = std::min(deadline, *cut_off_since_ + beat_of(settings_.patience));
  }
  return deadline;
}

// --- What follows from it --------------------------------------------------------------------

// `said`: what was received and is part of view_ now.
void SurvivorAgreement::update(const Said* said, Time now) {
  const bool is_behind = said != nullptr && said->proposal > own_.proposal;
  const Outcome outcome = outcome_of(view_);
  // That a lost member has ended is no reason to withdraw a decision.
  const bool is_same = decision_ ? outcome.survivors == own_.outcome.survivors &&
                                       outcome.given_up == own_.outcome.given_up
                                 : outcome == own_.outcome;
  if (!is_same || is_behind) {
    if (decision_) withdraw();
    const bool is_heard_of = is_behind && said->outcome == outcome_of(view_);
    begin_proposal(is_heard_of ? said->proposal
                               : std::max(own_.proposal, said != nullptr ? said->proposal : 0) + 1,
                   now);
  }
  decide(now);
}

void SurvivorAgreement::begin_proposal(std::uint64_t number, Time now) {
  view_.proposal = view_.reached[settings_.rank] = number;
  own_ = {number, outcome_of(view_)};
  for (auto& [member, peer] : peers_) {
    const bool is_lost = !contains(own_.outcome.survivors, member);
    if (is_lost != peer.lost_since.has_value()) {
      peer.lost_since = is_lost ? std::optional(now) : std::nullopt;
    }
  }
  tells_all_ = true;
  next_beat_ = now + beat_of(settings_.patience);
}

// Others may form the world all the same.
void SurvivorAgreement::withdraw() {
  const Decision& decided = decision_->value();
  GivenUp& world = view_.given_up[decided.members];
  world.epoch = std::max(world.epoch, decided.epoch);
  world.decided.insert(settings_.rank);
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

// The time until which it waits for a lost member that is still heard to say what it knows: it may
// be the other one that goes.
std::optional<Time> SurvivorAgreement::objections_until() const {
  std::optional<Time> until;
  for (const auto& [member, peer] : peers_) {
    const bool agrees = peer.said && !contains(peer.said->outcome.survivors, member);
    if (!peer.lost_since || agrees || view_.ended.contains(member) ||
        view_.broken.contains({settings_.rank, member})) {
      continue;
    }
    const Time end = std::min(peer.silence.heard(), *peer.lost_since) + settings_.patience / 2;
    if (!until || *until < end) until = end;
  }
  return until;
}

// Whether this process reaches none of those that stay.
bool SurvivorAgreement::is_cut_off() const {
  const std::vector<int>& survivors = own_.outcome.survivors;
  return std::all_of(survivors.begin(), survivors.end(),
                     [&](int member) { return view_.broken.contains({settings_.rank, member}); });
}

void SurvivorAgreement::decide(Time now) {
  if (decision_) return;
  if (formed_by_others_) {
    continue_from(*std::exchange(formed_by_others_, std::nullopt), now);
  }
  if (contains(own_.outcome.survivors, settings_.rank)) {
    cut_off_since_.reset();
    if (all_say_the_same() && objections_until().value_or(now) <= now) conclude();
  } else if (!is_cut_off()) {
    cut_off_since_.reset();  // one of those that stay will tell what becomes of it
  } else if (!cut_off_since_) {
    cut_off_since_ = now;  // until others have had the time to confirm what this process has seen
  } else if (now - *cut_off_since_ >= beat_of(settings_.patience)) {
    stop(str("rank ", settings_.rank, " does not reach those that stay, ",
             describe_ranks(own_.outcome.survivors)));
  }
}

void SurvivorAgreement::conclude() {
  const std::vector<int>& survivors = own_.outcome.survivors;
  const std::vector<std::vector<int>>& given_up = own_.outcome.given_up;
  const auto is_majority_of = [&](const std::vector<int>& members) {
    return has_quorum(survivors, members, own_.outcome.ended);
  };
  const auto left = str(survivors.size(), " of ", settings_.members.size(), " ranks");
  if (!is_majority_of(members_) || !std::all_of(given_up.begin(), given_up.end(), is_majority_of)) {
    stop(str(left, " cannot go on: others may live and have the majority"));
  } else if (survivors.size() < static_cast<std::size_t>(std::max(settings_.min_size, 0))) {
    stop(str(left, " are left, fewer than ", settings_.min_size));
  } else {
    decision_ = Decision{survivors, own_.proposal, lost()};
    was_stopped_since_decision_ = false;
  }
}

void SurvivorAgreement::stop(const std::string& why) {
  std::string text = why;
  int first = -1;
  for (const auto& [member, peer] : peers_) {
    const auto found = view_.broken.find({settings_.rank, member});
    const Status cause = found != view_.broken.end() ? found->second : cause_of(member);
    if (cause.ok()) continue;
    text += str("; rank ", member, ": ", cause.to_string());
    if (first < 0) first = member;
  }
  decision_ = Status(ErrorCode::peer_lost, std::move(text), first);
  tells_all_ = beats_ = false;
  answers_.clear();
  latecomers_.clear();
}

std::vector<std::pair<int, Status>> SurvivorAgreement::lost() const {
  std::vector<std::pair<int, Status>> lost;
  for (const int member : without(settings_.members, own_.outcome.survivors)) {
    if (member != settings_.rank) lost.emplace_back(member, cause_of(member));
  }
  return lost;
}

Status SurvivorAgreement::cause_of(int member) const {
  if (const auto found = lost_earlier_.find(member); found != lost_earlier_.end()) {
    return found->second;
  }
  if (const auto found = view_.ended.find(member); found != view_.ended.end()) {
    return found->second;
  }
  // What one that stays says, or else what it says itself.
  Status own;
  for (const auto& [link, cause] : view_.broken) {
    if (link.member == member && contains(own_.outcome.survivors, link.observer)) return cause;
    if (link.observer == member && own.ok()) own = does_not_reach(member, link.member, cause);
  }
  return own;
}

// The world in which this process was to take part was formed without its knowing, and is broken
// since it did not take part.
void SurvivorAgreement::continue_from(const EpochHasGoneOn& message, Time now) {
  for (const int member : without(members_, message.members)) {
    lost_earlier_.emplace(member, cause_of(member));
    peers_.erase(member);
    answers_.erase(member);
    view_.ended.erase(member);
    view_.reached.erase(member);
  }
  members_ = message.members;
  view_.epoch = message.epoch;
  view_.broken.clear();  // found anew where it still is so
  std::erase_if(view_.given_up,
                [&](const auto& item) { return item.second.epoch <= message.epoch; });
  std::erase_if(view_.reached, [&](const auto& item) { return item.second <= message.epoch; });
  for (auto& [member, peer] : peers_) peer = Peer{Silence(now)};
  begin_proposal(std::max(own_.proposal, message.epoch) + 1, now);
}

// --- What goes out ---------------------------------------------------------------------------

std::vector<SurvivorAgreement::Message> SurvivorAgreement::take_messages() {
  std::vector<Message> messages;
  const auto tell = [&](int member, bool is_answer) {
    SurvivorView view = view_;
    view.knows_nothing = !peers_.at(member).said;
    view.is_answer = is_answer;
    messages.push_back({member, encode(view)});
    answers_.erase(member);
  };
  if (std::exchange(tells_all_, false)) {
    beats_ = false;
    for (const auto& peer : peers_) {
      if (!view_.ended.contains(peer.first)) tell(peer.first, false);
    }
  }
  if (std::exchange(beats_, false)) {
    for (const int member : own_.outcome.survivors) {
      if (member != settings_.rank) tell(member, false);
    }
  }
  for (const int member : std::exchange(answers_, {})) tell(member, true);
  for (const int member : std::exchange(latecomers_, {})) {
    EpochHasGoneOn answer{view_.epoch, members_, cause_of(member)};
    if (is_formed_) {
      answer.epoch = decision_->value().epoch;
      answer.members = decision_->value().members;
    }
    messages.push_back({member, encode(answer)});
  }
  return messages;
}

}  // namespace rueda
