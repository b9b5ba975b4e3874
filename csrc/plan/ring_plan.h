// The ring, as data: who sends what to whom in which hop.
//
// Patarasuk and Yuan, "Bandwidth optimal allreduce algorithms for clusters of workstations", 2009:
// reduce-scatter then all-gather around a ring, 2(P-1) steps, each rank sending 2(P-1)/P of the
// data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace rueda {

// A run of elements: [offset, offset + count).
struct Segment {
  std::int64_t offset = 0;
  std::int64_t count = 0;
  friend bool operator==(const Segment&, const Segment&) = default;
};

// What one rank does for one chunk in one step: it sends `send` to the next rank of the ring and
// receives `recv` from the previous one, to reduce it into its own data or to replace that.
struct Hop {
  int step = 0;
  std::int64_t chunk = 0;
  Segment send;
  Segment recv;
  bool reduces = false;
};

// The hops of one rank, in the order in which it sends and receives. Computed on demand, so that a
// plan costs nothing, no matter how many ranks and chunks there are.
//
// The data is divided into one segment per rank; each segment travels in chunks of at most `chunk`
// elements. Hop i may be sent once hop i - chunks() has been received: a segment is passed on chunk
// by chunk. A hop may replace data that this rank also sent in the reduce-scatter, as hop i - (size
// - 1) * chunks(); it must not be received before that send has completed.
class RingPlan {
 public:
  // Every rank ends up with the reduction of all `count` elements.
  static RingPlan allreduce(int rank, int size, std::int64_t count, std::int64_t chunk);
  // Rank r ends up with the reduction of segment r, of lengths[r] elements.
  static RingPlan reduce_scatter(int rank, std::vector<std::int64_t> lengths, std::int64_t chunk);
  // Rank r starts with segment r; every rank ends up with all of them.
  static RingPlan allgather(int rank, std::vector<std::int64_t> lengths, std::int64_t chunk);
  // The same with segments at any offsets.
  static RingPlan reduce_scatter(int rank, std::vector<Segment> segments, std::int64_t chunk);
  static RingPlan allgather(int rank, std::vector<Segment> segments, std::int64_t chunk);

  // The same ring from the view of another rank; shares the segments with this one.
  [[nodiscard]] RingPlan of_rank(int rank) const;

  [[nodiscard]] int ranks() const { return size_; }
  [[nodiscard]] int next() const { return (rank_ + 1) % size_; }
  [[nodiscard]] int previous() const { return (rank_ + size_ - 1) % size_; }

  // Hops around the ring, however finely they are chunked: 2(P-1) for an allreduce.
  [[nodiscard]] int steps() const;
  [[nodiscard]] std::int64_t chunks() const { return chunks_; }
  [[nodiscard]] std::int64_t hops() const { return steps() * chunks_; }
  [[nodiscard]] Hop hop(std::int64_t index) const;

  [[nodiscard]] Segment segment(int owner) const {
    return (*segments_)[static_cast<std::size_t>(owner)];
  }
  [[nodiscard]] Segment own_segment() const { return segment(rank_); }
  // Whether the second half of the hops overwrites data that was sent in the first.
  [[nodiscard]] bool has_both_phases() const { return reduce_scatters_ && gathers_; }

 private:
  RingPlan(int rank, std::vector<Segment> segments, std::int64_t chunk, bool reduce_scatters,
           bool gathers);
  [[nodiscard]] Segment part(int owner, std::int64_t chunk_index) const;

  int rank_;
  int size_;
  std::shared_ptr<const std::vector<Segment>> segments_;  // by rank
  std::int64_t chunk_;
  std::int64_t chunks_ = 0;
  bool reduce_scatters_;
  bool gathers_;
};

}  // namespace rueda
