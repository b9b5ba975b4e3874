// How far one rank has come in an allreduce along a tree, chunk by chunk, and what it may post
// next: chunks are combined on their way up, and the result follows them down.
//
// Only counts: the caller posts transfers and knows when they complete.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "plan/double_tree.h"

namespace rueda {

class TreeProgress {
 public:
  // How many chunks' receives are posted ahead.
  static constexpr std::int64_t window = 4;

  // Transfers between this rank and one other in one direction, in order.
  class Flow {
   public:
    [[nodiscard]] std::int64_t posted() const { return posted_; }
    [[nodiscard]] std::int64_t over() const { return over_; }
    void post() { ++posted_; }
    void finish() { ++over_; }

   private:
    std::int64_t posted_ = 0;
    std::int64_t over_ = 0;
  };

  TreeProgress(const TreePlace& place, std::int64_t chunks)
      : chunks_(chunks), children_(place.children.size()), is_root_(place.is_root()) {}

  // By child: what it sends up, and what is sent down to it. The same for the parent.
  Flow& from_child(std::size_t child) { return from_children_[child]; }
  Flow& to_child(std::size_t child) { return to_children_[child]; }
  Flow& to_parent() { return to_parent_; }
  Flow& from_parent() { return from_parent_; }

  [[nodiscard]] bool may_receive_from_child(std::size_t child) const {
    const Flow& flow = from_children_[child];
    return flow.posted() < std::min(chunks_, flow.over() + window);
  }
  // Whether the next chunk of this child may be combined: after the same chunk of earlier children.
  [[nodiscard]] bool may_combine(std::size_t child) const {
    return child == 0 || from_children_[child - 1].over() > from_children_[child].over();
  }
  // Chunks that contain the contributions of this rank and all below it.
  [[nodiscard]] std::int64_t combined() const {
    return children_ == 0 ? chunks_ : from_children_[children_ - 1].over();
  }
  [[nodiscard]] bool may_send_to_parent() const {
    return !is_root_ && to_parent_.posted() < combined();
  }
  // The result replaces what was sent up.
  [[nodiscard]] bool may_receive_from_parent() const {
    return !is_root_ &&
           from_parent_.posted() < std::min(to_parent_.over(), from_parent_.over() + window);
  }
  // Chunks of the result.
  [[nodiscard]] std::int64_t results() const { return is_root_ ? combined() : from_parent_.over(); }
  [[nodiscard]] bool may_send_to_child(std::size_t child) const {
    return to_children_[child].posted() < results();
  }
  [[nodiscard]] bool is_over() const {
    for (std::size_t child = 0; child < children_; ++child) {
      if (to_children_[child].over() < chunks_) return false;
    }
    return results() == chunks_;
  }

 private:
  std::int64_t chunks_;
  std::size_t children_;
  bool is_root_;
  std::array<Flow, 2> from_children_;
  std::array<Flow, 2> to_children_;
  Flow to_parent_;
  Flow from_parent_;
};

}  // namespace rueda
