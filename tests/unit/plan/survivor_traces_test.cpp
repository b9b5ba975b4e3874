// Replays traces of the model of the survivors' agreement (tests/model/membership.pml) on
// SurvivorAgreement: after each event both must be in the same state.
//
// A trace has one event per line; the model defines the events. They are replayed as follows:
//
// - "send P Q", by which the model tells at once what it knows: P must have a message for Q. A link
//   of the model carries one message at a time, with all that is known when the link is free.
//   Therefore a second object of P is never asked for its messages itself; copies of it are, and
//   return what P would say now.
// - "speak P Q" stands for signs of life and answers to them: P says the same a quarter of the
//   heartbeat later, or when Q gives such a sign and does not count P in, or P does not count Q in.
// - "has_gone_on P Q": Q's message arrives at P, which is in a later epoch, and P's answer at Q.
// - "receive", "ended", "unreachable", "give_up" and "form" are separate calls. "miss" loses a
//   message, and "die" an object.
// - Time stands still in a trace, because messages are faster than the heartbeat. "part" loses the
//   messages in flight from one side to the other.
//
// After an event of P, a line "= P ..." has P's decision and all that P knows. At "rest", no member
// may have anything to say that would change another.
#include <array>
#include <bit>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/strings.h"
#include "plan/rank_list.h"
#include "plan/survivor_agreement.h"

namespace rueda::test::survivor_traces_test {

namespace {

using Bytes = std::vector<std::byte>;
// Numbers as written in a trace: members are bits of a mask, broken links bits of a 16-bit mask.
using Numbers = std::vector<long>;

constexpr int size = 4;
constexpr std::uint64_t broken_epoch = 7;  // the model starts at 0

template <class Members>
long mask_of(const Members& members) {
  long mask = 0;
  for (const int member : members) mask |= 1L << member;
  return mask;
}

long number_of(std::uint64_t epoch) {
  return static_cast<long>(epoch - broken_epoch);
}

// The bytes addressed to `member`.
std::optional<Bytes> find(const std::vector<SurvivorAgreement::Message>& messages, int member) {
  for (const auto& message : messages) {
    if (message.member == member) return message.bytes;
  }
  return std::nullopt;
}

class Member {
 public:
  Member(const SurvivorAgreement::Settings& settings, Time now)
      : agreement_(settings, now), says_all_(settings, now) {
    note_messages();
  }

  // Applies the event to both objects.
  template <class Act>
  void act(const Act& act) {
    act(agreement_);
    act(says_all_);
    note_messages();
  }
  [[nodiscard]] const SurvivorAgreement& agreement() const { return agreement_; }

  // What it would tell `member` now; nothing if `member` has ended or this one no longer takes
  // part.
  [[nodiscard]] std::optional<Bytes> view_for(int member) const {
    SurvivorAgreement copy = says_all_;
    return find(copy.take_messages(), member);
  }
  // What it has to tell `member` since it was last asked.
  std::optional<Bytes> take(int member) {
    const auto found = owed_.find(member);
    auto bytes = view_for(member);
    if (found == owed_.end() || !bytes) return std::nullopt;
    auto message = decode_survivor_message(*bytes);
    REQUIRE(message);
    std::get<SurvivorView>(*message).is_answer = found->second;
    owed_.erase(found);
    return encode(*message);
  }
  std::optional<Bytes> answer(int member, const Bytes& question, Time now) {
    agreement_.receive(member, question, now);
    return find(agreement_.take_messages(), member);
  }
  // The epoch of the world that it has formed or agrees anew from.
  [[nodiscard]] std::uint64_t epoch() const {
    const auto& decision = agreement_.decision();
    return decision && decision->ok() ? (*decision)->epoch : agreement_.epoch();
  }
  void forget_owed(int member) { owed_.erase(member); }

  // The decision (-1 if it has stopped, 0 if it is open) and its number, followed by the view if
  // any other member is left.
  [[nodiscard]] Numbers state() const {
    Numbers numbers;
    const auto& decision = agreement_.decision();
    if (!decision) {
      numbers = {0, 0};
    } else if (!decision->ok()) {
      return {-1, 0};
    } else {
      numbers = {mask_of((*decision)->members), number_of((*decision)->epoch)};
    }
    std::optional<SurvivorView> view;
    for (int member = 0; member < size && !view; ++member) {
      if (const auto bytes = view_for(member)) {
        view = std::get<SurvivorView>(decode_survivor_message(*bytes).value());
      }
    }
    if (view) append(*view, numbers);
    return numbers;
  }

 private:
  static void append(const SurvivorView& view, Numbers& numbers) {
    long ended = 0;
    for (const auto& item : view.ended) ended |= 1L << item.first;
    long broken = 0;
    for (const auto& item : view.broken) {
      broken |= 1L << (item.first.observer * size + item.first.member);
    }
    numbers.insert(numbers.end(), {number_of(view.proposal), ended, broken});
    for (int member = 0; member < size; ++member) {
      const auto found = view.reached.find(member);
      numbers.push_back(found != view.reached.end() ? number_of(found->second) : 0);
    }
    std::map<long, std::pair<long, long>> given_up;
    for (const auto& [members, world] : view.given_up) {
      given_up[mask_of(members)] = {number_of(world.epoch), mask_of(world.decided)};
    }
    for (const auto& [members, world] : given_up) {
      numbers.insert(numbers.end(), {members, world.first, world.second});
    }
  }

  void note_messages() {
    for (const auto& message : agreement_.take_messages()) {
      const auto decoded = decode_survivor_message(message.bytes);
      REQUIRE(decoded);
      const auto* const view = std::get_if<SurvivorView>(&*decoded);
      if (view == nullptr) continue;
      bool& is_answer = owed_.try_emplace(message.member, true).first->second;
      is_answer = is_answer && view->is_answer;
    }
  }

  SurvivorAgreement agreement_;
  SurvivorAgreement says_all_;  // never asked for its messages itself
  std::map<int, bool> owed_;    // to whom; whether only as an answer
};

class Replay {
 public:
  explicit Replay(long side) : side_(side) {
    for (int rank = 0; rank < size; ++rank) {
      SurvivorAgreement::Settings settings;
      settings.rank = rank;
      settings.members = {0, 1, 2, 3};
      settings.epoch = broken_epoch;
      settings.timeout = timeout;
      members_[at(rank)].emplace(settings, now_);
    }
  }

  void act(const std::string& verb, const Numbers& numbers) {
    const auto number = [&](std::size_t index) { return static_cast<int>(numbers.at(index)); };
    const int one = number(0);
    if (verb == "die") {
      members_[at(one)].reset();
    } else if (verb == "send") {
      send(one, number(1), member(one).take(number(1)));
    } else if (verb == "speak") {
      send(one, number(1), spoken(one, number(1)));
      member(one).forget_owed(number(1));
    } else if (verb == "receive") {
      const Bytes message = take_off(one, number(1));
      member(number(1)).act([&](auto& agreement) { agreement.receive(one, message, now_); });
    } else if (verb == "part") {
      side_ = numbers.at(0);
      std::erase_if(
          way_, [&](const auto& item) { return !same_side(item.first.first, item.first.second); });
    } else if (verb == "miss") {
      take_off(one, number(1));
    } else if (verb == "ended" || verb == "unreachable") {
      const Loss kind = verb == "ended" ? Loss::ended : Loss::unreachable;
      member(one).act([&](auto& agreement) {
        agreement.lose(number(1), kind, Status(ErrorCode::peer_lost, verb, number(1)), now_);
      });
    } else if (verb == "give_up") {
      member(one).act([&](auto& agreement) {
        agreement.not_formed(broken_epoch + static_cast<std::uint64_t>(numbers.at(1)), now_);
      });
    } else if (verb == "form") {
      REQUIRE(member(one).agreement().decision());
      member(one).act([&](auto& agreement) { agreement.formed(now_); });
      silent_.insert(one);
    } else if (verb == "has_gone_on") {
      has_gone_on(one, number(1));
    } else {
      FAIL("no event: " << verb);
    }
  }

  void require_state(int rank, Numbers expected) {
    const Numbers observed = member(rank).state();
    // If all others have ended, there is no member to send a view to.
    if (observed.size() == 2) expected.resize(2);
    REQUIRE(observed == expected);
  }

  // No member would change its state on hearing from another.
  void require_rest() {
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to) {
        if (from == to || !agrees(from) || !agrees(to) || !same_side(from, to)) continue;
        const auto message = spoken(from, to);
        if (!message) continue;
        CAPTURE(from, to, describe_survivor_message(*message));
        Member told = member(to);
        told.act([&](auto& agreement) { agreement.receive(from, *message, now_); });
        REQUIRE(told.state() == member(to).state());
      }
    }
  }

 private:
  static constexpr Duration timeout = std::chrono::seconds(1);

  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  [[nodiscard]] bool same_side(int one, int other) const {
    return ((side_ >> one) & 1) == ((side_ >> other) & 1);
  }
  Member& member(int rank) {
    REQUIRE(members_.at(at(rank)));
    return *members_[at(rank)];
  }
  // Alive and not yet in a world.
  [[nodiscard]] bool agrees(int rank) const {
    const auto& member = members_[at(rank)];
    if (!member || silent_.contains(rank)) return false;
    const auto& decision = member->agreement().decision();
    return !decision || decision->ok();
  }

  void send(int from, int to, const std::optional<Bytes>& message) {
    INFO("rank " << from << " has nothing to tell rank " << to);
    REQUIRE(message);
    REQUIRE(way_.try_emplace({from, to}, *message).second);
  }
  Bytes take_off(int from, int to) {
    const auto found = way_.find({from, to});
    REQUIRE(found != way_.end());
    Bytes message = std::move(found->second);
    way_.erase(found);
    return message;
  }

  // What `from` tells `to` in a sign of life or in an answer to one.
  std::optional<Bytes> spoken(int from, int to) {
    if (auto message = sign_of_life(from, to)) return message;
    const auto asked = sign_of_life(to, from);
    if (!asked) return std::nullopt;
    Member answering = member(from);
    answering.forget_owed(to);
    answering.act([&](auto& agreement) { agreement.receive(to, *asked, now_); });
    return answering.take(to) ? member(from).view_for(to) : std::nullopt;
  }
  std::optional<Bytes> sign_of_life(int from, int to) {
    SurvivorAgreement later = member(from).agreement();
    later.advance(now_ + timeout / 4);
    return find(later.take_messages(), to);
  }

  void has_gone_on(int from, int to) {
    const auto question = member(to).view_for(from);
    REQUIRE(question);
    const auto answer = member(from).answer(to, *question, now_);
    REQUIRE(answer);
    REQUIRE_FALSE(SurvivorAgreement::epoch_of(*answer));
    member(to).act([&](auto& agreement) { agreement.receive(from, *answer, now_); });
    if (!agrees(to)) return;  // expelled, as the next line says
    REQUIRE(member(to).epoch() == member(from).epoch());
    REQUIRE_FALSE(member(to).agreement().decision());
    silent_.insert(to);
  }

  long side_;
  Time now_{std::chrono::hours(1)};
  std::array<std::optional<Member>, size> members_;
  std::set<int> silent_;  // in a world, or agreeing anew from it
  std::map<std::pair<int, int>, Bytes> way_;
};

// How often each kind of event has occurred.
using Counts = std::map<std::string, int>;

Counts replay(std::istream& traces) {
  Counts counts;
  std::optional<Replay> replay;
  int number = 0;
  for (std::string line; std::getline(traces, line);) {
    ++number;
    if (line.empty() || line.starts_with('#') || line.ends_with(" created")) continue;  // spin's
    CAPTURE(number, line);
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    Numbers numbers;
    for (long value = 0; words >> value;) numbers.push_back(value);
    ++counts[verb];
    if (verb == "begin") {
      replay.emplace(numbers.at(0));
      continue;
    }
    REQUIRE(replay);
    if (verb == "rest") {
      replay->require_rest();
      replay.reset();
    } else if (verb == "=") {
      const int rank = static_cast<int>(numbers.at(0));
      replay->require_state(rank, {numbers.begin() + 1, numbers.end()});
      ++counts[numbers.at(1) < 0 ? "stopped" : numbers.at(1) > 0 ? "decided" : "undecided"];
    } else {
      replay->act(verb, numbers);
    }
  }
  REQUIRE_FALSE(replay);  // every trace was complete
  return counts;
}

}  // namespace

// The stored traces, or those made by tests/model/replay.
TEST_CASE("what has happened in the model happens to the state machine") {
  const char* const made = std::getenv("RUEDA_MODEL_TRACES");
  std::ifstream traces(made != nullptr ? made : RUEDA_MODEL_FOLDER "/membership.traces");
  REQUIRE(traces);
  Counts counts = replay(traces);
  for (const char* kind :
       {"die", "send", "speak", "receive", "miss", "part", "ended", "unreachable", "give_up",
        "form", "has_gone_on", "decided", "undecided", "stopped"}) {
    CAPTURE(kind);
    REQUIRE(counts[kind] > 0);
  }
  REQUIRE(counts["begin"] >= 12);
  REQUIRE(counts["rest"] == counts["begin"]);
}

}  // namespace rueda::test::survivor_traces_test
