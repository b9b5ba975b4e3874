#include "backend/hierarchical_compressed.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "backend/compressed_allreduce.h"
#include "backend/compressed_faults.h"
#include "backend/contribute.h"
#include "backend/sequence.h"
#include "backend/sliced_layout.h"
#include "backend/stages.h"
#include "reduce/cast.h"

namespace rueda {

namespace {

// Elements that stay in the L1 cache while they are packed and checked.
constexpr std::int64_t packed_at_a_time = 4096;

// Memory that other members of this host read during this object's lifetime.
class SharedBytes {
 public:
  SharedBytes(BufferPool& pool, std::size_t bytes) : pool_(pool), buffer_(pool.take(bytes)) {}
  SharedBytes(const SharedBytes&) = delete;
  SharedBytes& operator=(const SharedBytes&) = delete;
  ~SharedBytes() { pool_.give_back(std::move(buffer_)); }

  [[nodiscard]] std::byte* data() const { return buffer_.bytes.get(); }

 private:
  BufferPool& pool_;
  PooledBuffer buffer_;
};

bool is_aligned(const std::byte* data) {
  return reinterpret_cast<std::uintptr_t>(data) % alignof(float) == 0;
}

// Whether the other members here can work on the tensors in place.
bool can_stay(const Lane& lane, const Reduction& reduction, const std::vector<Piece>& pieces) {
  if (pieces.size() != 1 || reduction.dtype != DataType::float32 || reduction.prescale != 1.0) {
    return false;
  }
  const Piece& piece = pieces.front();
  const std::size_t bytes = static_cast<std::size_t>(piece.count) * sizeof(float);
  return piece.output != nullptr && is_aligned(piece.input) && is_aligned(piece.output) &&
         is_reachable_here(lane, piece.input, bytes) &&
         is_reachable_here(lane, piece.output, bytes);
}

class CompressedHierarchy {
 public:
  CompressedHierarchy(const Lane& lane, const HostPolicy& policy, BufferPool& pool,
                      const Reduction& reduction, std::vector<Piece> pieces,
                      std::shared_ptr<CompressedFaults> faults)
      : lane_(lane),
        policy_(policy),
        reduction_(reduction),
        pieces_(std::move(pieces)),
        faults_(std::move(faults)),
        limit_(make_codec(reduction.compression)->limit()),
        rank_(lane.hosts->rank()),
        slices_(lane.hosts->min_size()),
        layout_(layout_of(pieces_)),
        flags_(pool, pieces_.size() * static_cast<std::size_t>(slices_)),
        before_(line_up(lane.before_links, layout_.parts())),
        after_(line_up(lane.after_links, layout_.parts() + 1)) {
    const bool takes_part = contributes(pieces_);
    if (!can_stay(lane, reduction, pieces_)) {
      std::int64_t count = 0;
      for (const Piece& piece : pieces_) count += piece.count;
      packed_.emplace(pool, static_cast<std::size_t>(count) * sizeof(float));
      data_ = {takes_part ? packed_->data() : nullptr, packed_->data(), count};
    } else {
      data_ = pieces_.front();
    }
  }

  [[nodiscard]] std::int64_t parts() const { return layout_.parts(); }

  // Leaves each slice with the member that carries it: this host's sum.
  [[nodiscard]] std::unique_ptr<Operation> reduce(std::int64_t part) {
    if (data_.input != nullptr) bring_in(part);
    const Reduction within = {.op = reduction_.op, .contributors = reduction_.contributors};
    if (lane_.before_links == nullptr) {
      const Segment own = layout_.slice(part, 0);
      contribute(output(own.offset), input(own.offset), own.count, within);
      return nullptr;
    }
    return reduce_slices(lane_, policy_, within, data_, slices_of(part),
                         before_ + static_cast<std::uint64_t>(part));
  }

  // A slice's part of each tensor is encoded separately.
  [[nodiscard]] std::unique_ptr<Operation> cross(std::int64_t part) {
    if (rank_ >= slices_) return nullptr;
    const std::span<const SlicedRun> runs = layout_.runs(part, rank_);
    std::vector<Piece> pieces;
    for (const SlicedRun& run : runs) {
      const Piece& tensor = pieces_[run.tensor];
      pieces.push_back(
          {output(run.at), output(run.at), run.count, tensor.kept.from(run.first), run.first});
    }
    Reduction across = reduction_;
    across.dtype = DataType::float32;
    across.prescale = 1.0;
    across.contributors = lane_.hosts->hosts();
    const auto report = [this, runs](std::size_t run, int rank) {
      if (rank == all_ranks) faults_->found_in_result(runs[run].tensor);
    };
    return std::make_unique<CompressedAllreduce>(lane_of_part(lane_across(lane_, rank_), part),
                                                 across, std::move(pieces), report);
  }

  [[nodiscard]] std::unique_ptr<Operation> gather(std::int64_t part) const {
    if (lane_.after_links == nullptr) return nullptr;
    return gather_slices(lane_, policy_, data_.output, sizeof(float), slices_of(part),
                         after_ + static_cast<std::uint64_t>(part));
  }

  void bring_out(std::int64_t part) const {
    if (!packed_) return;
    for_each_run(part, [this](const SlicedRun& run) {
      std::byte* const target = pieces_[run.tensor].output;
      if (target == nullptr) return;
      cast(target + bytes(run.first), reduction_.dtype, output(run.at), DataType::float32,
           run.count);
      lane_.counters->bytes_packed.add(run.count * static_cast<std::int64_t>(sizeof(float)));
    });
  }

  // Only the members that carry a slice know whether its results are usable.
  [[nodiscard]] std::unique_ptr<Operation> share_faults() {
    if (lane_.after_links == nullptr) return nullptr;
    const std::size_t tensors = pieces_.size();
    std::vector<Segment> slices;
    for (int index = 0; index < slices_; ++index) {
      const auto count = static_cast<std::int64_t>(tensors);
      slices.push_back({index * count, count});
    }
    if (rank_ < slices_) {
      std::memcpy(flags_.data() + static_cast<std::size_t>(rank_) * tensors,
                  faults_->results().data(), tensors);
    }
    return gather_slices(lane_, policy_, flags_.data(), 1, slices,
                         after_ + static_cast<std::uint64_t>(parts()));
  }
  void take_faults() {
    if (lane_.after_links == nullptr) return;
    const std::size_t tensors = pieces_.size();
    for (std::size_t i = 0; i < tensors * static_cast<std::size_t>(slices_); ++i) {
      if (flags_.data()[i] != std::byte{0}) faults_->found_in_result(i % tensors);
    }
  }

 private:
  [[nodiscard]] SlicedLayout layout_of(const std::vector<Piece>& pieces) const {
    std::vector<std::int64_t> counts;
    for (const Piece& piece : pieces) counts.push_back(piece.count);
    const auto units = [&](std::int64_t count) {
      const std::int64_t shares = std::int64_t{slices_} * lane_.hosts->hosts();
      return parts_of(lane_.codec_chunk_bytes, count * static_cast<std::int64_t>(sizeof(float)),
                      shares);
    };
    const auto part = static_cast<std::int64_t>(min_part / sizeof(float));
    return {counts, units, slices_, pieces.size() == 1 ? 1 : part};
  }
  [[nodiscard]] std::vector<Segment> slices_of(std::int64_t part) const {
    std::vector<Segment> slices;
    for (int index = 0; index < slices_; ++index) slices.push_back(layout_.slice(part, index));
    return slices;
  }
  template <class Visit>
  void for_each_run(std::int64_t part, const Visit& visit) const {
    for (int index = 0; index < slices_; ++index) {
      for (const SlicedRun& run : layout_.runs(part, index)) visit(run);
    }
  }

  // Packs whatever the other members cannot work on in place, and checks all that this rank
  // contributes: in the host's sum it is no longer visible whose value was not finite.
  void bring_in(std::int64_t part) const {
    for_each_run(part, [this](const SlicedRun& run) {
      bool is_fine = true;
      for (std::int64_t done = 0; done < run.count; done += packed_at_a_time) {
        const std::int64_t count = std::min(packed_at_a_time, run.count - done);
        is_fine = bring_in(run, done, count) && is_fine;
      }
      if (!is_fine) faults_->found_in_contribution(run.tensor, lane_.rank);
      if (packed_) {
        lane_.counters->bytes_packed.add(run.count * static_cast<std::int64_t>(sizeof(float)));
      }
    });
  }
  [[nodiscard]] bool bring_in(const SlicedRun& run, std::int64_t done, std::int64_t count) const {
    const std::byte* values = input(run.at + done);
    if (packed_) {
      std::byte* const target = packed_->data() + bytes(run.at + done, sizeof(float));
      const std::byte* const source = pieces_[run.tensor].input + bytes(run.first + done);
      cast(target, DataType::float32, source, reduction_.dtype, count, reduction_.prescale);
    }
    return are_within(reinterpret_cast<const float*>(values), count, limit_);
  }

  [[nodiscard]] static std::size_t bytes(std::int64_t count, std::size_t element) {
    return static_cast<std::size_t>(count) * element;
  }
  [[nodiscard]] std::size_t bytes(std::int64_t count) const {
    return bytes(count, size_of(reduction_.dtype));
  }
  // The memory in which this host's members work.
  [[nodiscard]] const std::byte* input(std::int64_t at) const {
    return data_.input == nullptr ? nullptr : data_.input + bytes(at, sizeof(float));
  }
  [[nodiscard]] std::byte* output(std::int64_t at) const {
    return data_.output + bytes(at, sizeof(float));
  }

  const Lane lane_;
  const HostPolicy policy_;
  const Reduction reduction_;
  const std::vector<Piece> pieces_;
  const std::shared_ptr<CompressedFaults> faults_;
  const float limit_;
  const int rank_;  // among this host's members
  const int slices_;
  const SlicedLayout layout_;
  const SharedBytes flags_;  // per slice, per tensor: whether results are unusable
  std::optional<SharedBytes> packed_;
  Piece data_;                  // all tensors as laid out: in place, or packed
  const std::uint64_t before_;  // first tickets in the channels' queues
  const std::uint64_t after_;
};

}  // namespace

std::unique_ptr<Operation> hierarchical_compressed(const Lane& lane, const HostPolicy& policy,
                                                   BufferPool& pool, const Reduction& reduction,
                                                   std::vector<Piece> pieces) {
  const auto faults = std::make_shared<CompressedFaults>(pieces.size(), lane);
  const auto whole = std::make_shared<CompressedHierarchy>(lane, policy, pool, reduction,
                                                           std::move(pieces), faults);
  const auto steps = [whole](std::int64_t part) -> std::vector<Sequence::Step> {
    return {[whole, part] { return whole->reduce(part); },
            [whole, part] { return whole->cross(part); },
            [whole, part] { return whole->gather(part); },
            [whole, part]() -> std::unique_ptr<Operation> {
              whole->bring_out(part);
              return nullptr;
            }};
  };
  return compressed_operation(faults, reduction.compression.codec,
                              {[whole, steps] {
                                 return std::make_unique<Pipeline>(whole->parts(), parts_under_way,
                                                                   steps);
                               },
                               [whole] { return whole->share_faults(); },
                               [whole]() -> std::unique_ptr<Operation> {
                                 whole->take_faults();
                                 return nullptr;
                               }});
}

}  // namespace rueda
