#include "plan/ring_plan.h"

#include <algorithm>
#include <utility>

namespace rueda {

namespace {

// Consecutive segments of these lengths.
std::vector<Segment> segments_of(const std::vector<std::int64_t>& lengths) {
  std::vector<Segment> segments;
  segments.reserve(lengths.size());
  std::int64_t offset = 0;
  for (const std::int64_t length : lengths) {
    segments.push_back({offset, length});
    offset += length;
  }
  return segments;
}

}  // namespace

RingPlan::RingPlan(int rank, std::vector<Segment> segments, std::int64_t chunk,
                   bool reduce_scatters, bool gathers)
    : rank_(rank),
      size_(static_cast<int>(segments.size())),
      segments_(std::make_shared<const std::vector<Segment>>(std::move(segments))),
      chunk_(std::max<std::int64_t>(chunk, 1)),
      reduce_scatters_(reduce_scatters),
      gathers_(gathers) {
  for (int owner = 0; owner < size_; ++owner) {
    // Written so that it cannot overflow for any chunk.
    const std::int64_t count = segment(owner).count;
    chunks_ = std::max(chunks_, count / chunk_ + (count % chunk_ != 0 ? 1 : 0));
  }
}

RingPlan RingPlan::allreduce(int rank, int size, std::int64_t count, std::int64_t chunk) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(size), count / size);
  for (std::int64_t i = 0; i < count % size; ++i) ++lengths[static_cast<std::size_t>(i)];
  return {rank, segments_of(lengths), chunk, true, true};
}

RingPlan RingPlan::reduce_scatter(int rank, std::vector<std::int64_t> lengths, std::int64_t chunk) {
  return {rank, segments_of(lengths), chunk, true, false};
}

RingPlan RingPlan::allgather(int rank, std::vector<std::int64_t> lengths, std::int64_t chunk) {
  return {rank, segments_of(lengths), chunk, false, true};
}

RingPlan RingPlan::reduce_scatter(int rank, std::vector<Segment> segments, std::int64_t chunk) {
  return {rank, std::move(segments), chunk, true, false};
}

RingPlan RingPlan::allgather(int rank, std::vector<Segment> segments, std::int64_t chunk) {
  return {rank, std::move(segments), chunk, false, true};
}

RingPlan RingPlan::of_rank(int rank) const {
  RingPlan plan = *this;
  plan.rank_ = rank;
  return plan;
}

int RingPlan::steps() const {
  return (size_ - 1) * (static_cast<int>(reduce_scatters_) + static_cast<int>(gathers_));
}

Segment RingPlan::part(int owner, std::int64_t chunk_index) const {
  const Segment whole = segment(owner);
  const std::int64_t begin = std::min(whole.count, chunk_index * chunk_);
  return {whole.offset + begin, std::min(chunk_, whole.count - begin)};
}

Hop RingPlan::hop(std::int64_t index) const {
  const int step = static_cast<int>(index / chunks_);
  const std::int64_t chunk_index = index - step * chunks_;
  const bool reduces = reduce_scatters_ && step < size_ - 1;
  // In the reduce-scatter the segment that ends here starts at the next rank, P-1 hops upstream;
  // in the all-gather each rank starts with the segment it owns.
  const int turn = step < size_ - 1 ? step : step - (size_ - 1);
  const int first = reduces ? rank_ - 1 : rank_;
  // For values from -size on.
  const auto wrap = [this](int value) { return value < 0 ? value + size_ : value; };
  return {step, chunk_index, part(wrap(first - turn), chunk_index),
          part(wrap(first - turn - 1), chunk_index), reduces};
}

}  // namespace rueda
