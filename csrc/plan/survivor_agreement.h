// Agrees between the processes of an epoch that broke which of them are left, and which epoch they
// form next.
//
// A pure state machine: messages, losses and the time go in; messages and a decision come out. Each
// member tells the others which members it has lost. What all know is the union of that, from which
// each computes by the same rule who stays (see survivor_choice.h). A member decides once all that
// stay have told it that they have come to the same result.
//
// A decision is an intention: the decided world lives only if all its members take part in forming
// it. Who cannot form it says so, and all agree anew under a higher number. Since others may have
// formed it all the same, whoever agrees from then on needs a majority of its members, too, as of
// the epoch that broke (dynamic voting: Jajodia and Mutchler 1990, Lotem, Keidar and Dolev 1997).
// So no two worlds without a common member come out of an epoch:
// - Members that have certainly ended do not count. Of the others those that stay must be more than
//   half, or half with the lowest-numbered of them. Otherwise they stop.
// - Who has formed a world answers those who have not with its number and members. Who is a member
//   agrees anew from there; who is none is expelled, and stops.
// - Who has itself been silent for long (it was stopped and wakes up) does not know what others
//   have done meanwhile: for it, those that have ended count as unreachable.
//
// Drive it from the moment the epoch has broken until the new world is formed, also while that is
// being formed: a decision can be withdrawn. Keep it afterwards, for receive() and take_messages()
// only, until the next one takes its place: it answers those who come late.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "plan/signs_of_life.h"
#include "plan/survivor_knowledge.h"
#include "plan/survivor_message.h"

namespace rueda {

class SurvivorAgreement {
 public:
  // Members are named by the number of their process, which never changes.
  struct Settings {
    int rank = 0;              // this process
    std::vector<int> members;  // of the epoch that broke, sorted; `rank` is one of them
    std::uint64_t epoch = 0;   // its number
    Duration timeout{};        // a member that is silent for so long is lost: the heartbeat
    int min_size = 1;          // of a world
    // This process may have been silent for longer than half of `timeout` since it has decided on
    // the epoch that broke: it was stopped, or did not get to run.
    bool was_stopped = false;
    // When members gave their last sign of life, where that was before the agreement begins.
    std::map<int, Time> heard = {};
  };

  SurvivorAgreement(Settings settings, Time now);

  // What `member` has sent, in its order. Messages may get lost before this object exists, at the
  // cost of a quarter of `timeout`. What no SurvivorAgreement sends is ignored and counted.
  void receive(int member, std::span<const std::byte> message, Time now);

  // Whom the next advance() loses for their silence, unless something comes of them before.
  [[nodiscard]] std::vector<int> silent(Time now) const;
  // The member's process is seen to wait for a processor, so it is given more time; see silence.h.
  void excuse(int member, Time now);

  // The member is lost. `ended`: its process has certainly ended (its connection was closed, or is
  // refused by its host; its process descriptor says so), and everything that it had sent was
  // handed to receive() before. `unreachable`: anything else. The first report of a member holds.
  void lose(int member, Loss kind, const Status& cause, Time now);

  // Does what is due, at next_deadline() at the latest. Whoever calls this more than half of
  // `timeout` late counts as stopped.
  void advance(Time now);
  [[nodiscard]] std::optional<Time> next_deadline() const;

  struct Message {
    int member;
    std::vector<std::byte> bytes;
  };
  // To be sent. Where several messages have arrived hand in all of them first: one answer serves.
  [[nodiscard]] std::vector<Message> take_messages();

  struct Decision {
    std::vector<int> members;  // sorted
    std::uint64_t epoch = 0;   // higher than that of any world that was ever decided on
    // Those of Settings::members that are not in `members`, sorted, and why.
    std::vector<std::pair<int, Status>> lost;
  };
  // Nothing while undecided, and nothing again after a decision was withdrawn: whoever forms it
  // gives up at once. An error (peer_lost) where this process must stop: it is in the minority, was
  // expelled by the others, or fewer than min_size are left. The text says who is lost, and why.
  // An error is final.
  [[nodiscard]] const std::optional<Expected<Decision>>& decision() const { return decision_; }

  // The decided world with this number could not be formed: agrees anew. Does nothing where the
  // decision is not that one any more.
  void not_formed(std::uint64_t epoch, Time now);
  // The decided world is formed: all its members have taken part. Only while decision() has it.
  void formed(Time now);
  // Whether this process was stopped between its decision and formed(): others may have gone on
  // already. For Settings::was_stopped of the next agreement.
  [[nodiscard]] bool was_stopped() const { return was_stopped_since_decision_; }

  // The epoch that is agreed on: that of the settings, or a later one, formed by others, in which
  // this process was to take part.
  [[nodiscard]] std::uint64_t epoch() const { return known_.epoch(); }

  // The epoch that has broken for the sender; nothing for an answer and for what no
  // SurvivorAgreement sends. Whoever is in that epoch and has not seen it break learns it from
  // this.
  [[nodiscard]] static std::optional<std::uint64_t> epoch_of(std::span<const std::byte> message);

  [[nodiscard]] std::uint64_t messages_ignored() const { return ignored_; }

 private:
  // A member sends different outcomes under different numbers only, so two worlds that have a
  // member in common never have the same number.
  struct Said {
    std::uint64_t proposal = 0;
    SurvivorOutcome outcome;
    [[nodiscard]] bool operator==(const Said&) const = default;
  };
  struct Peer {
    std::optional<Said> said = {};        // last
    bool has_gone_on = false;             // has sent something of a later epoch
    std::optional<Time> lost_since = {};  // in this process's view
  };

  [[nodiscard]] bool is_over() const { return is_formed_ || (decision_ && !decision_->ok()); }
  [[nodiscard]] bool is_witness_of_end(int member, const Peer& peer, Time now) const;
  [[nodiscard]] bool all_say_the_same() const;
  [[nodiscard]] std::optional<Time> objections_until() const;
  [[nodiscard]] const std::vector<int>* find_world(std::uint64_t epoch) const;

  void notice_pause(Time now);
  void receive_view(int member, const SurvivorView& view, Time now);
  void receive_has_gone_on(const EpochHasGoneOn& message, Time now);
  void update(const Said* said, Time now);
  void begin_proposal(std::uint64_t number, Time now);
  void withdraw();
  void decide(Time now);
  void conclude();
  void stop(const std::string& why);
  void continue_from(const EpochHasGoneOn& message, Time now);

  Settings settings_;
  SurvivorKnowledge known_;                         // of the epoch agreed on
  SignsOfLife signs_;                               // of the other members
  Said own_;                                        // what follows from known_
  std::map<int, Peer> peers_;                       // the other members
  std::optional<EpochHasGoneOn> formed_by_others_;  // with this process, which is forming a world
  std::optional<Time> cut_off_since_;
  bool is_formed_ = false;
  bool was_stopped_since_decision_ = false;

  bool tells_all_ = false;    // those that have not ended
  bool beats_ = false;        // tells the survivors
  std::set<int> answers_;     // members to be answered
  std::set<int> latecomers_;  // to be told that the epoch has gone on

  std::optional<Expected<Decision>> decision_;
  std::uint64_t ignored_ = 0;
};

}  // namespace rueda
