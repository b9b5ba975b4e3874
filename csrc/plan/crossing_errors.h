// Errors can cross, on the wire, what ranks submit under the same names. A node of the tree
// distinguishes what a child sent before it knew an error from what it sent afterwards. A rank that
// submits late what the others gave up waiting for gets the error then, once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "plan/negotiation_message.h"
#include "plan/response.h"

namespace rueda {

class CrossingErrors {
 public:
  // `has_children`: whether messages from below need to be told apart.
  explicit CrossingErrors(bool has_children) : has_children_(has_children) {}

  // A list of responses is about to be applied.
  void begin_list() { ++applied_; }
  // How many lists this rank has applied.
  [[nodiscard]] std::uint64_t applied() const { return applied_; }
  // How many lists `child` had applied when it sent what comes now. `children`: all there are.
  void note_applied(int child, std::uint64_t lists, const std::vector<int>& children);

  // This rank applies the error.
  void note(const Response& error);
  // Whether the child sent this before it knew the error that answers it.
  [[nodiscard]] bool was_answered(int child, const Announcement& announcement) const;

  // This rank had submitted nothing of what failed.
  void miss(const Response& error);
  // The error that `requests` (one, or a group) have missed; ok if there is none.
  [[nodiscard]] Status take_missed(std::span<const Request> requests);
  // This rank will not submit what it missed.
  void forget_missed() { missed_.clear(); }

  // The number of names and groups for which the list with their error is kept.
  [[nodiscard]] std::size_t kept() const { return failed_at_.size(); }

 private:
  const bool has_children_;
  std::uint64_t applied_ = 0;
  std::map<int, std::uint64_t> child_applied_;
  // By name and by group: the list that contained the error.
  std::map<std::string, std::uint64_t> failed_at_;
  std::map<std::string, Status> missed_;
};

}  // namespace rueda
