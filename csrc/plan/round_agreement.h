// Agrees between the hosts of a process set which plans are done again, and in which order.
//
// A pure state machine, as the Negotiator is: what a host says and the messages it receives go in;
// messages and decisions come out. The hosts form a tree (see Tree), of which one rank of each host
// is a node. A plan is a number. A host says that it is ready for the plan's next round, or that
// the plan is cancelled for ever. A node passes on what its whole subtree is ready for, and every
// cancellation at once. The root decides, and its decisions go down as they are: all hosts have the
// same ones in the same order. A round to which all hosts are ready goes, unless the root has heard
// of a cancellation before; after that no round of the plan goes any more.
//
// While a host is busy it holds back what it is ready for, and the root what goes, for there is
// nothing that could run earlier. What goes at once can be fused.
//
// So a host that cancels what it is ready for knows only by the decision whether it came in time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "plan/tree.h"
#include "plan/wire.h"

namespace rueda {

class RoundAgreement {
 public:
  struct Decision {
    std::uint64_t plan = 0;
    bool goes = false;       // otherwise it is cancelled
    bool with_next = false;  // goes together with the next one that goes
    bool operator==(const Decision&) const = default;
  };
  struct Outgoing {
    int host;
    std::vector<std::byte> message;
  };

  RoundAgreement(int host, int hosts, int fanout = 4) : tree_(host, hosts, fanout) {}

  // This host is ready for the next round; once until that is decided, and not once the decisions
  // that have been received say that the plan is cancelled.
  void ready(std::uint64_t plan);
  // Once, and not after such a decision either.
  void cancel(std::uint64_t plan);
  // Nothing is done again from now on.
  void end();

  // Whether enough is under way on this host that will end without anything being decided.
  void set_busy(bool busy) { is_busy_ = busy; }

  // False for what no RoundAgreement sends.
  [[nodiscard]] bool receive(int host, std::span<const std::byte> message);
  // Turns what was said and received since the last call into messages and decisions.
  void flush();
  [[nodiscard]] std::vector<Outgoing> take_outgoing() { return std::exchange(outgoing_, {}); }
  [[nodiscard]] std::vector<Decision> take_decisions() { return std::exchange(decided_, {}); }

  // All have agreed on the end: what is not decided by now is cancelled.
  [[nodiscard]] bool has_ended() const { return has_ended_; }
  // Whether other hosts hear of decisions through this one.
  [[nodiscard]] bool has_children() const { return !tree_.children().empty(); }
  [[nodiscard]] bool is_root() const { return tree_.is_root(); }
  // Plans of which something is remembered.
  [[nodiscard]] std::size_t kept() const { return ready_.size() + cancelled_.size(); }

 private:
  struct UpMessage {
    std::vector<std::uint64_t> ready;
    std::vector<std::uint64_t> cancelled;
    bool ends = false;
  };
  struct DownMessage {
    std::vector<Decision> decisions;
    bool ends = false;
  };

  [[nodiscard]] bool receive_up(int child, Reader& reader);
  [[nodiscard]] bool receive_down(Reader& reader);
  // Whether the child said what it says of the plan before it knew that this is cancelled.
  [[nodiscard]] bool is_late(int child, std::uint64_t plan) const;
  void add_ready(std::uint64_t plan);
  void add_cancelled(std::uint64_t plan);
  void apply(const DownMessage& message);
  void flush_root();
  void flush_up();

  const Tree tree_;
  std::map<std::uint64_t, std::size_t> ready_;  // of this host and the children, how many are
  // Plans that are cancelled, until all children know it: the number of the message that says so.
  std::map<std::uint64_t, std::uint64_t> cancelled_;
  std::map<int, std::uint64_t> known_below_;  // how many messages each child has had
  std::uint64_t messages_down_ = 0;           // that were applied here
  UpMessage up_;                              // for the next flush
  bool acknowledges_ = false;                 // with the next flush
  DownMessage down_;                          // the same, at the root
  bool is_busy_ = false;
  bool has_ended_ = false;
  std::vector<Outgoing> outgoing_;
  std::vector<Decision> decided_;
};

}  // namespace rueda
