#include "backend/sliced_layout.h"

#include "plan/hierarchy_plan.h"

namespace rueda {

SlicedLayout::SlicedLayout(std::span<const std::int64_t> counts, const UnitsOf& units_of,
                           int slices, std::int64_t part)
    : slices_of_part_(slices) {
  std::vector<Unit> units;  // of the current part
  std::int64_t elements = 0;
  for (std::size_t tensor = 0; tensor < counts.size(); ++tensor) {
    if (counts[tensor] == 0) continue;
    const std::int64_t cuts = units_of(counts[tensor]);
    for (std::int64_t unit = 0; unit < cuts; ++unit) {
      units.push_back({tensor, cut(counts[tensor], cuts, unit)});
      elements += units.back().segment.count;
      if (elements < part) continue;
      add_part(units);
      units.clear();
      elements = 0;
    }
  }
  if (!units.empty()) add_part(units);
}

void SlicedLayout::add_part(std::span<const Unit> units) {
  std::int64_t at =
      slices_.empty() ? 0 : slices_.back().segment.offset + slices_.back().segment.count;
  for (int index = 0; index < slices_of_part_; ++index) {
    const std::int64_t begin = at;
    const std::size_t first_run = runs_.size();
    for (const Unit& unit : units) {
      const Segment slice = cut(unit.segment.count, slices_of_part_, index);
      if (slice.count == 0) continue;
      runs_.push_back({unit.tensor, unit.segment.offset + slice.offset, slice.count, at});
      at += slice.count;
    }
    slices_.push_back({{begin, at - begin}, first_run, runs_.size()});
  }
}

std::span<const SlicedRun> SlicedLayout::runs(std::int64_t part, int index) const {
  const Slice& slice = slices_[place(part, index)];
  return std::span(runs_).subspan(slice.first_run, slice.end - slice.first_run);
}

}  // namespace rueda
