// How a batch is cut where each host's members share the work of its links: into parts that are
// under way one after the other, each with a slice for every member that carries one.
//
// A tensor is cut by itself, into units of which each lies in one part, and each unit into slices:
// which of its elements belong together does not depend on which other tensors are in the batch.
// The units of a part lie side by side, slice by slice, so that a slice is one run of elements. A
// single tensor lies as it is.
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
  std::int64_t at = 0;     // within the batch as it is laid out
};

class SlicedLayout {
 public:
  // Into how many units a tensor of so many elements is cut: at least one, where it has any.
  using UnitsOf = std::function<std::int64_t(std::int64_t count)>;

  // `counts`: the elements of each tensor. `slices`: how many members carry one. `part`: units are
  // put together until they have at least so many elements.
  SlicedLayout(std::span<const std::int64_t> counts, const UnitsOf& units_of, int slices,
               std::int64_t part);

  [[nodiscard]] std::int64_t parts() const {
    return static_cast<std::int64_t>(slices_.size()) / slices_of_part_;
  }
  // Where it lies.
  [[nodiscard]] Segment slice(std::int64_t part, int index) const {
    return slices_[place(part, index)].segment;
  }
  // What is in it, in its order.
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
