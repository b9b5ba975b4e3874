// What is known of the tensors that ranks of a node's subtree have submitted and that await an
// answer: who has requested each, and with which parameters.
//
// A tensor is complete once this rank and the whole subtree of each child have submitted it or have
// joined. Only then is it announced further up, or answered by the root.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "plan/joined_ranks.h"
#include "plan/negotiation_message.h"
#include "plan/tree.h"

namespace rueda {

struct AnnouncedTensor {
  // Ranks that have requested it in the same way.
  struct Asked {
    Request request;
    std::vector<int> ranks;
    std::vector<int> children;  // whose whole subtree requested it so, except the `absent` ranks
  };
  // How long it has been waited for, and what was reported about that: see StallWatch.
  struct Waiting {
    Time since;
    Time next_report;
    bool reported = false;
    bool inquiring = false;  // the report waits for answers
    Duration least{};        // its timeout at least: it began under a longer one than the present
  };
  // The groups that it belongs to; more than one only if ranks disagree. "" for none.
  using Groups = std::set<std::string>;

  std::vector<Asked> variants;  // of this rank and the complete children
  std::vector<std::pair<int, std::int64_t>> first_extents;
  std::vector<int> absent;  // sorted; ranks below complete children that have joined instead
  std::set<int> complete_children;
  std::map<int, Announcement> partial_children;
  bool self_ready = false;
  bool complete = false;                      // this subtree; announced with the next flush
  std::optional<std::uint64_t> announced_id;  // of the response cache
  Waiting waiting;

  // As first requested. Only if it is complete or was submitted here.
  [[nodiscard]] const Request& request() const { return variants.front().request; }
  // The ranks that request it as `request` does.
  Asked& variant_of(const Request& request);
  [[nodiscard]] Groups groups() const;
};

class AnnouncedTensors {
 public:
  using Tensors = std::map<std::string, AnnouncedTensor>;

  // All must outlive this.
  AnnouncedTensors(const Tree& tree, const Subtrees& subtrees, const JoinedRanks& joined)
      : tree_(tree), subtrees_(subtrees), joined_(joined) {}

  // The second value: whether it is new.
  std::pair<Tensors::iterator, bool> add(const std::string& name) {
    return tensors_.try_emplace(name);
  }
  [[nodiscard]] bool empty() const { return tensors_.empty(); }
  [[nodiscard]] bool contains(const std::string& name) const { return tensors_.contains(name); }
  [[nodiscard]] const AnnouncedTensor& at(const std::string& name) const {
    return tensors_.at(name);
  }
  [[nodiscard]] AnnouncedTensor& at(const std::string& name) { return tensors_.at(name); }
  [[nodiscard]] AnnouncedTensor* find(const std::string& name);
  [[nodiscard]] Tensors::iterator begin() { return tensors_.begin(); }
  [[nodiscard]] Tensors::iterator end() { return tensors_.end(); }

  // It has been answered.
  void erase(const std::string& name) { tensors_.erase(name); }
  // It has been answered with an error, together with all of its group, if it has one. Returns
  // whether this rank had submitted any of that.
  bool fail(const std::string& name, const std::string& group);
  void clear() { tensors_.clear(); }

  // Call when something was submitted for the tensor; without a tensor, when a rank has joined,
  // which may complete any of them.
  void update_complete(Tensors::iterator tensor);
  void update_complete();
  // The tensors that are complete and were not taken before, in order of completion.
  [[nodiscard]] std::vector<std::string> take_completed() { return std::exchange(completed_, {}); }
  [[nodiscard]] bool is_just_completed(const std::string& name) const;
  // Makes take_completed() return it again.
  void complete_again(const std::string& name) { completed_.push_back(name); }
  // A completed name must not outlive its tensor: if the name were used again, the next round would
  // take the entry for its own.
  void drop_answered_completions();

  // The ranks that have requested it in this way.
  [[nodiscard]] std::vector<int> ranks_of(const AnnouncedTensor& tensor,
                                          const AnnouncedTensor::Asked& variant) const;
  // The ranks that have requested it in any way.
  [[nodiscard]] std::vector<int> ready_ranks(const AnnouncedTensor& tensor) const;
  // The ranks below a complete child that have not joined instead.
  [[nodiscard]] std::vector<int> ready_ranks(const AnnouncedTensor& tensor, int child) const;
  // The ranks that have joined instead; the tensor is complete.
  [[nodiscard]] std::vector<int> absent_ranks(const AnnouncedTensor& tensor) const;
  // For the parent. `partial`: the tensor is not complete.
  [[nodiscard]] Announcement announce(const AnnouncedTensor& tensor, bool partial) const;

 private:
  const Tree& tree_;
  const Subtrees& subtrees_;
  const JoinedRanks& joined_;
  Tensors tensors_;
  std::vector<std::string> completed_;
};

}  // namespace rueda
