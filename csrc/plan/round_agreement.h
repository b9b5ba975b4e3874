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
// nothing that could run earlier; but not what Load lets begin all the same. What goes at once can
// be fused, and the most urgent goes first.
//
// A host may send something small along with the news that it is ready. Where every host has, it is
// combined on the way up, and the result goes down with the decision: a small allreduce.
//
// So a host that cancels what it is ready for knows only by the decision whether it came in time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "plan/load.h"
#include "plan/tree.h"
#include "plan/wire.h"

namespace rueda {

class RoundAgreement {
 public:
  using Bytes = std::vector<std::byte>;
  struct Decision {
    std::uint64_t plan = 0;
    bool goes = false;       // otherwise it is cancelled
    bool with_next = false;  // goes together with the next one that goes
    Bytes result = {};       // of what was sent along; empty: not all hosts have
    bool operator==(const Decision&) const = default;
  };
  struct Outgoing {
    int host;
    std::vector<std::byte> message;
  };

  // What this host and the hosts beneath it have sent along with a round, in the order of the
  // hosts at their tops; `is_result`: these are all. What it gives is as long as each of them.
  using Combine = std::function<Bytes(std::uint64_t plan, std::vector<Bytes> sent, bool is_result)>;

  // Without `combine` nothing is sent along.
  RoundAgreement(int host, int hosts, Combine combine = {}, int fanout = 4)
      : tree_(host, hosts, fanout), host_(host), combine_(std::move(combine)) {}

  // This host is ready for the next round; once until that is decided, and not once the decisions
  // that have been received say that the plan is cancelled. `sent`: along with it; empty: nothing.
  // `urgency`: the same on all hosts.
  void ready(std::uint64_t plan, Bytes sent = {}, Urgency urgency = {});
  // Once, and not after such a decision either.
  void cancel(std::uint64_t plan);
  // Nothing is done again from now on.
  void end();

  // What is under way on this host.
  void set_load(const Load& load) { load_ = load; }

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
  struct Own {
    Urgency urgency;
    std::size_t bytes = 0;  // sent along
  };
  struct ReadySubtree {
    std::uint64_t plan = 0;
    Bytes sent;  // by all of its hosts, combined; or empty
  };
  struct UpMessage {
    std::vector<ReadySubtree> ready;
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
  // False where the host has said so before, and nothing has been decided since.
  [[nodiscard]] bool add_ready(int host, std::uint64_t plan, Bytes sent);
  void add_cancelled(std::uint64_t plan);
  void apply(DownMessage message);
  // What does not have to wait for what is under way, or everything; the rest stays.
  template <class Said>
  [[nodiscard]] std::vector<Said> take(std::vector<Said>& said, bool everything) const;
  // The most urgent of those that go first. None overtakes a cancellation.
  void sort(std::vector<Decision>& decisions) const;
  void flush_root();
  void flush_up();

  const Tree tree_;
  const int host_;
  const Combine combine_;
  // Of a plan, who of this host and the children is ready, and what each has sent along.
  std::map<std::uint64_t, std::map<int, Bytes>> ready_;
  // Plans that are cancelled, until all children know it: the number of the message that says so.
  std::map<std::uint64_t, std::uint64_t> cancelled_;
  std::map<int, std::uint64_t> known_below_;  // how many messages each child has had
  std::uint64_t messages_down_ = 0;           // that were applied here
  UpMessage up_;                              // for the next flush
  bool acknowledges_ = false;                 // with the next flush
  DownMessage down_;                          // the same, at the root
  std::size_t result_bytes_ = 0;              // in it
  std::map<std::uint64_t, Own> own_;          // plans that this host is ready for
  Load load_;
  bool has_ended_ = false;
  std::vector<Outgoing> outgoing_;
  std::vector<Decision> decided_;
};

}  // namespace rueda
