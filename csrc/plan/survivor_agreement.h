// Agrees between the processes of an epoch that broke which of them are left, and which epoch they
// form next.
//
// A pure state machine: messages, losses and the time go in; messages and a decision come out. Each
// member tells the others which members it has lost. The union is what all know; from it, each
// computes by the same rule who stays (see survivor_choice.h). A member decides once all that stay
// have told it the same result.
//
// A decision is an intention: the decided world lives only if all its members take part in forming
// it. A member that cannot form it says so, and all agree again under a higher number. Since others
// may have formed that world nevertheless, an agreement from then on needs a majority of that
// world's members, too, as of the epoch that broke (dynamic voting: Jajodia and Mutchler 1990,
// Lotem, Keidar and Dolev 1997). So no two worlds without a common member come out of an epoch:
// - Members that have certainly ended do not count. Of the others, those that stay must be more
//   than half, or half including the lowest-numbered. Otherwise they stop.
// - A process that has formed a world answers those that have not with its number and members. A
//   member of it agrees again from there; any other process is expelled, and stops.
// - A process that was silent itself for long (it was stopped and wakes up) does not know what the
//   others have done meanwhile: it counts members that have ended as unreachable.
//
// On one host, who is silent is stopped rather than cut off: it hears and decides nothing, and is
// killed before the others go on without it. So there a member that was silent counts as ended once
// its process has, and a minority waits for that.
//
// Drive it from the moment when the epoch has broken until the new world is formed, including while
// that is being formed: a decision can be withdrawn. Then keep it, for receive() and
// take_messages() only, until the next one takes its place: it answers late messages.
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
  // Members are named by the number of their process, which never changes. Texts and statuses name
  // them by their rank in the epoch that broke, which is their place in `members`.
  struct Settings {
    int rank = 0;              // this process
    std::vector<int> members;  // of the epoch that broke, sorted; `rank` is one of them
    std::uint64_t epoch = 0;   // its number
    Duration timeout{};        // a member that is silent for this long is lost: the heartbeat
    int min_size = 1;          // of a world
    // Whether this process may have been silent for longer than half of `timeout` since it decided
    // on the epoch that broke: it was stopped, or did not get to run.
    bool was_stopped = false;
    // Whether all members are on one host, see "one host" above.
    bool is_one_host = false;
    // When members gave their last sign of life, if that was before the agreement begins.
    std::map<int, Time> heard = {};
  };

  SurvivorAgreement(Settings settings, Time now);

  // What `member` has sent, in its order. Messages that are lost before this object exists cost a
  // quarter of `timeout`. What no SurvivorAgreement sends is ignored and counted.
  void receive(int member, std::span<const std::byte> message, Time now);

  // The members that the next advance() loses for their silence, unless they are heard before.
  // None after a pause of this process.
  [[nodiscard]] std::vector<int> silent(Time now);
  // The member's process is seen to wait for a processor, so it gets more time; see silence.h.
  void excuse(int member, Time now);

  // The member is lost. `ended`: its process has certainly ended (its connection was closed, or is
  // refused by its host, or its process descriptor says so), and receive() has got everything that
  // it had sent. `unreachable`: anything else. The first report on a member counts; but on one host
  // a member that was unreachable may end.
  void lose(int member, Loss kind, const Status& cause, Time now);

  // Does what is due. Call at next_deadline() at the latest; a caller that is more than half of
  // `timeout` late counts as stopped.
  void advance(Time now);
  [[nodiscard]] std::optional<Time> next_deadline() const;

  struct Message {
    int member;
    std::vector<std::byte> bytes;
  };
  // Messages to send. If several messages have arrived, pass in all of them first: one answer does.
  [[nodiscard]] std::vector<Message> take_messages();

  struct Decision {
    std::vector<int> members;  // sorted
    std::uint64_t epoch = 0;   // higher than that of any world that was ever decided on
    // Those of Settings::members that are not in `members`, sorted, and why.
    std::vector<std::pair<int, Status>> lost;
  };
  // Empty while undecided, and again after a decision was withdrawn: a process that is forming that
  // world gives up immediately. An error (peer_lost) if this process must stop: it is in the
  // minority, was expelled by the others, or fewer than min_size are left. The text says who is
  // lost, and why. An error is final; its reason is `unreachable` for a minority.
  [[nodiscard]] const std::optional<Expected<Decision>>& decision() const { return decision_; }

  // The decided world with this number could not be formed: agrees again. Does nothing if that is
  // not the current decision.
  void not_formed(std::uint64_t epoch, Time now);
  // The decided world is formed: all its members took part. Call only while decision() has it.
  void formed(Time now);
  // Whether this process was stopped between its decision and formed(): others may already have
  // gone on. For Settings::was_stopped of the next agreement.
  [[nodiscard]] bool was_stopped() const { return was_stopped_since_decision_; }

  // The epoch that is agreed on: that of the settings, or a later one, formed by others, in which
  // this process was to take part.
  [[nodiscard]] std::uint64_t epoch() const { return known_.epoch(); }

  // The epoch that has broken for the sender; empty for an answer and for what no SurvivorAgreement
  // sends. From this, a process in that epoch that has not seen it break learns of it.
  [[nodiscard]] static std::optional<std::uint64_t> epoch_of(std::span<const std::byte> message);

  [[nodiscard]] std::uint64_t messages_ignored() const { return ignored_; }

 private:
  // A member sends different outcomes only under different numbers, so two worlds with a common
  // member never have the same number.
  struct Said {
    std::uint64_t proposal = 0;
    SurvivorOutcome outcome;
    [[nodiscard]] bool operator==(const Said&) const = default;
  };
  struct Peer {
    std::optional<Said> said = {};        // the last one
    bool has_gone_on = false;             // has sent something of a later epoch
    std::optional<Time> lost_since = {};  // from this process's view
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
  void conclude(Time now);
  void stop(const std::string& why, ErrorReason reason = ErrorReason::unspecified);
  void continue_from(const EpochHasGoneOn& message, Time now);

  Settings settings_;
  SurvivorKnowledge known_;                         // of the epoch agreed on
  SignsOfLife signs_;                               // of the other members
  Said own_;                                        // what follows from known_
  std::map<int, Peer> peers_;                       // the other members
  std::optional<EpochHasGoneOn> formed_by_others_;  // includes this process, which is forming one
  std::optional<Time> cut_off_since_;
  Time ends_until_{};  // when this minority stops waiting for the others to end, on one host
  bool is_formed_ = false;
  bool was_stopped_since_decision_ = false;

  bool tells_all_ = false;    // sends to all that have not ended
  bool beats_ = false;        // sends to the survivors
  std::set<int> answers_;     // members to answer
  std::set<int> latecomers_;  // members to tell that the epoch has gone on

  std::optional<Expected<Decision>> decision_;
  std::uint64_t ignored_ = 0;
};

}  // namespace rueda
