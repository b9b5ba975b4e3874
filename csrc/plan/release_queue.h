// What the root of a process set's tree may release: complete tensors, the most urgent first,
// groups as a whole. While enough is in progress it holds some of them back, so that they are
// fused.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "plan/announced_tensors.h"
#include "plan/load.h"
#include "plan/response_builder.h"

namespace rueda {

class ReleaseQueue {
 public:
  // Holds back fewer bytes than `fusion_threshold`. The others must outlive this.
  ReleaseQueue(const AnnouncedTensors& tensors, const ResponseBuilder& responses,
               const SetNaming& naming, std::int64_t fusion_threshold)
      : tensors_(tensors),
        responses_(responses),
        naming_(naming),
        fusion_threshold_(fusion_threshold) {}

  void set_load(const Load& load) { load_ = load; }

  // The tensor is complete. A member of a group waits for the others.
  void add(const std::string& name);
  [[nodiscard]] bool contains(const std::string& name) const;
  [[nodiscard]] bool empty() const { return ready_.empty(); }

  // Takes out what has to wait for work in progress; pass it to hold() after the release.
  [[nodiscard]] std::vector<std::string> take_held();
  void hold(std::vector<std::string> held) { ready_ = std::move(held); }
  // Answers everything that remains.
  [[nodiscard]] ResponseList release();
  // All ranks have joined, so nobody will submit the rest.
  [[nodiscard]] ResponseList fail_unfinished_groups() const;

  void forget_group(const std::string& group) { groups_.erase(group); }
  // A waiting name must not outlive its tensor: if the name were used again, the next round would
  // take the entry for its own.
  void drop_answered();
  void clear_groups() { groups_.clear(); }

 private:
  [[nodiscard]] bool is_enough_to_fuse() const;
  [[nodiscard]] std::int32_t priority_of(const std::string& name) const;

  const AnnouncedTensors& tensors_;
  const ResponseBuilder& responses_;
  const SetNaming& naming_;
  const std::int64_t fusion_threshold_;
  Load load_;
  std::vector<std::string> ready_;                          // in order
  std::map<std::string, std::vector<std::string>> groups_;  // complete members of incomplete groups
};

}  // namespace rueda
