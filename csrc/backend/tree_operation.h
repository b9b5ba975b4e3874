// Allreduce along a tree over a transport. Sums go up to the root chunk by chunk, and the result
// follows them down. All ranks get the root's bits.
#pragma once

#include <array>
#include <deque>
#include <vector>

#include "backend/backend.h"
#include "plan/double_tree.h"
#include "plan/tree_progress.h"

namespace rueda {

class TreeOperation final : public Operation {
 public:
  // In place, along one of the trees of double_tree.h, in chunks of at most `chunk` (>= 1)
  // elements. `data` is this rank's contribution, already scaled.
  TreeOperation(const Lane& lane, int tree, const Reduction& reduction, std::byte* data,
                std::int64_t count, std::int64_t chunk);

  bool advance() override;
  [[nodiscard]] bool done() const override { return done_; }
  [[nodiscard]] const Status& status() const override { return status_; }
  [[nodiscard]] std::vector<int> awaited() const override;

 private:
  // Messages in flight to or from one rank.
  struct Queue {
    int peer = -1;  // within the lane
    std::deque<Ticket> tickets;
  };

  [[nodiscard]] std::int64_t elements(std::int64_t chunk) const;
  [[nodiscard]] std::size_t bytes(std::int64_t chunk) const;
  [[nodiscard]] std::byte* at(std::int64_t chunk) const;
  [[nodiscard]] std::byte* staging(std::size_t child, std::int64_t chunk);
  void send(Queue& queue, TreeProgress::Flow& flow);
  void receive(Queue& queue, TreeProgress::Flow& flow, std::byte* target);
  // Removes the oldest message if it is done, and returns whether it was. An error ends the
  // operation.
  bool take(Queue& queue);
  bool move_up();
  bool move_down();
  void combine(std::size_t child);
  void finish_result(std::int64_t chunk);

  const Lane lane_;
  const Reduction reduction_;
  std::byte* const data_;
  const std::int64_t count_;
  const std::int64_t chunk_;
  const std::size_t element_;
  const TreePlace place_;
  TreeProgress progress_;
  std::array<Queue, 2> from_children_;
  std::array<Queue, 2> to_children_;
  Queue to_parent_;
  Queue from_parent_;
  std::array<std::vector<std::byte>, 2> staging_;  // by child
  bool done_;
  Status status_;
};

}  // namespace rueda
