// Agrees between the hosts of a process set on which plans are repeated, and in which order.
//
// A pure state machine, like the Negotiator: what a host says and the messages it receives go in;
// messages and decisions come out. The hosts form a tree (see Tree); one rank of each host is a
// node. A plan is a number. A host says that it is ready for the plan's next round, or that the
// plan is cancelled forever. A node passes on what its whole subtree is ready for, and every
// cancellation immediately. The root decides, and its decisions go down unchanged: all hosts have
// the same ones in the same order. A round that all hosts are ready for goes, unless the root has
// heard of a cancellation before; after that no round of the plan goes.
//
// While a host is busy it holds back what it is ready for, and the root holds back what goes, since
// nothing could run earlier. Load says what begins nevertheless. Rounds that go at the same time
// can be fused, and the most urgent goes first.
//
// A host may send something small along with the news that it is ready. If every host does, it is
// combined on the way up, and the result goes down with the decision: a small allreduce.
//
// So a host that cancels what it is ready for learns only from the decision whether it was in time.
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
    Bytes result = {};       // of the data sent along; empty: not all hosts have sent any
    bool operator==(const Decision&) const = default;
  };
  struct Outgoing {
    int host;
    std::vector<std::byte> message;
  };

  // Combines what this host and the hosts below it have sent along with a round, in the order of
  // the hosts at their tops; `is_result`: these are all. The result is as long as each of them.
  using Combine = std::function<Bytes(std::uint64_t plan, std::vector<Bytes> sent, bool is_result)>;

  // Without `combine`, nothing is sent along.
  RoundAgreement(int host, int hosts, Combine combine = {}, int fanout = 4)
      : tree_(host, hosts, fanout), host_(host), combine_(std::move(combine)) {}

  // This host is ready for the next round. Call once per decision, and not after a received
  // decision has cancelled the plan. `sent`: data to send along; empty: none. `urgency`: the same
  // on all hosts.
  void ready(std::uint64_t plan, Bytes sent = {}, Urgency urgency = {});
  // Call once, and not after such a decision either.
  void cancel(std::uint64_t plan);
  // Nothing is repeated from now on.
  void end();

  // What is in progress on this host.
  void set_load(const Load& load) { load_ = load; }

  // False for a message that no RoundAgreement sends.
  [[nodiscard]] bool receive(int host, std::span<const std::byte> message);
  // Turns what was said and received since the last call into messages and decisions.
  void flush();
  [[nodiscard]] std::vector<Outgoing> take_outgoing() { return std::exchange(outgoing_, {}); }
  [[nodiscard]] std::vector<Decision> take_decisions() { return std::exchange(decided_, {}); }

  // All hosts have agreed on the end: what is not decided by now is cancelled.
  [[nodiscard]] bool has_ended() const { return has_ended_; }
  // Whether other hosts receive decisions through this one.
  [[nodiscard]] bool has_children() const { return !tree_.children().empty(); }
  [[nodiscard]] bool is_root() const { return tree_.is_root(); }
  // The number of plans of which something is remembered.
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
  // Whether the child said this of the plan before it knew that the plan is cancelled.
  [[nodiscard]] bool is_late(int child, std::uint64_t plan) const;
  // False if the host has said so before, and nothing has been decided since.
  [[nodiscard]] bool add_ready(int host, std::uint64_t plan, Bytes sent);
  void add_cancelled(std::uint64_t plan);
  void apply(DownMessage message);
  // What does not have to wait for work in progress, or everything; the rest stays.
  template <class Said>
  [[nodiscard]] std::vector<Said> take(std::vector<Said>& said, bool everything) const;
  // The most urgent of those that go comes first. None overtakes a cancellation.
  void sort(std::vector<Decision>& decisions) const;
  void flush_root();
  void flush_up();

  const Tree tree_;
  const int host_;
  const Combine combine_;
  // For each plan, which of this host and the children are ready, and what each has sent along.
  std::map<std::uint64_t, std::map<int, Bytes>> ready_;
  // Cancelled plans, until all children know it: the number of the message that says so.
  std::map<std::uint64_t, std::uint64_t> cancelled_;
  std::map<int, std::uint64_t> known_below_;  // how many messages each child has received
  std::uint64_t messages_down_ = 0;           // how many were applied here
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
