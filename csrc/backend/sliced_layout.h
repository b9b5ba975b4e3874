// How a batch is cut when each host's members share its links: into parts that are processed one
// after the other, each with a slice for every member that uses a link.
//
// Each tensor is cut separately into units, and each unit into slices; a unit belongs to one part.
// So which elements stay together does not depend on the batch's other tensors. Within a part,
// units are grouped by slice, so that a slice is contiguous. A single tensor keeps its order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "plan/ring_plan.h"

namespace rueda {

// Elements of one tensor in one slice of one part.
struct SlicedRun {
  std::size_t tensor = 0;
  std::int64_t first = 0;  // within the tensor
  std::int64_t count = 0;  // not 0
  std::int64_t at = 0;     // within the batch as laid out
};

class SlicedLayout {
 public:
  // Into how many units a tensor of `count` elements is cut; at least one unless it is empty.
  using UnitsOf = std::function<std::int64_t(std::int64_t count)>;

  // `counts`: elements of each tensor. `slices`: number of members that carry one. `part`: minimum
  // elements of a part, which is filled with units up to there.
  SlicedLayout(std::span<const std::int64_t> counts, const UnitsOf& units_of, int slices,
               std::int64_t part);

  [[nodiscard]] std::int64_t parts() const {
    return static_cast<std::int64_t>(slices_.size()) / slices_of_part_;
  }
  // Position of the slice in the batch as laid out.
  [[nodiscard]] Segment slice(std::int64_t part, int index) const {
    return slices_[place(part, index)].segment;
  }
  // The slice's runs, in order.
  [[nodiscard]] std::span<const SlicedRun> runs(std::int64_t part, int index) const;

 private:
  struct Unit {
    std::size_t tensor;
    Segment segment;
  };
  struct Slice {
    Segment segment;
    std::size_t first_run;
    std::size_t end;
  };

  [[nodiscard]] std::size_t place(std::int64_t part, int index) const {
    return static_cast<std::size_t>(part * slices_of_part_ + index);
  }
  void add_part(std::span<const Unit> units);

  int slices_of_part_;
  std::vector<SlicedRun> runs_;
  std::vector<Slice> slices_;  // part by part
};

}  // namespace rueda
