// Errors cross what ranks submit under the same names. A node of the tree tells what a child sent
// before it knew an error from what it sent afterwards, and a rank that comes late for what the
// others gave up waiting for is told so, once.
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
  // `has_children`: whether anything comes from below that has to be told apart.
  explicit CrossingErrors(bool has_children) : has_children_(has_children) {}

  // A list of responses is about to be applied.
  void begin_list() { ++applied_; }
  // How many have been, by this rank.
  [[nodiscard]] std::uint64_t applied() const { return applied_; }
  // By a child, when it sent what comes now. `children`: all there are.
  void note_applied(int child, std::uint64_t lists, const std::vector<int>& children);

  // It is applied by this rank.
  void note(const Response& error);
  // Whether the child sent this before it knew the error that answered it.
  [[nodiscard]] bool was_answered(int child, const Announcement& announcement) const;

  // This rank had submitted nothing of what has failed.
  void miss(const Response& error);
  // What `requests`, one or a group, have missed; ok for nothing.
  [[nodiscard]] Status take_missed(std::span<const Request> requests);
  // This rank will not come for it.
  void forget_missed() { missed_.clear(); }

  // Of how many names and groups it is kept which list had their error.
  [[nodiscard]] std::size_t kept() const { return failed_at_.size(); }

 private:
  const bool has_children_;
  std::uint64_t applied_ = 0;
  std::map<int, std::uint64_t> child_applied_;
  // By name and by group: the list that had the error.
  std::map<std::string, std::uint64_t> failed_at_;
  std::map<std::string, Status> missed_;
};

}  // namespace rueda
