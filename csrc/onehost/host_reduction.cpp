#include "onehost/host_reduction.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace rueda {

namespace {

// Whether other ranks reach it without the kernel.
bool is_seen(Place place) {
  return place != Place::address;
}

HostPolicy only_direct(HostPolicy policy) {
  policy.flat_limit = 0;
  policy.staged_limit = 0;
  return policy;
}

}  // namespace

HostReduction::HostReduction(HostChannel& channel, const HostPolicy& policy,
                             const Combination& combination, bool all_contribute,
                             std::vector<Piece>&& pieces, std::shared_ptr<const LeafPlan>&& leaves)
    : HostCollective(channel, policy),
      all_contribute_(all_contribute),
      combiner_(combination),
      tensors_(channel, combination.dtype, std::move(pieces), std::move(leaves)),
      direct_(channel, policy_, tensors_, combination, combiner_, traffic_) {
  find_reach();
}

HostReduction::HostReduction(HostChannel& channel, const HostPolicy& policy,
                             const Combination& combination, int contributors,
                             std::vector<Piece> pieces, Begin begin)
    : HostReduction(channel, policy, combination, contributors == channel.size(), std::move(pieces),
                    nullptr) {
  if (begin == Begin::now) start();
}

HostReduction::HostReduction(HostChannel& channel, const HostPolicy& policy,
                             const Combination& combination, int contributors,
                             const std::byte* input, std::byte* output,
                             const std::vector<std::int64_t>& lengths)
    : HostReduction(channel, policy, combination, contributors,
                    {Piece{input, output,
                           std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})}}) {
  const auto own = lengths.begin() + channel.rank();
  tensors_.divide({std::accumulate(lengths.begin(), own, std::int64_t{0}), *own});
  // No other rank writes it.
  for (Reach& reach : outputs_) reach = {};
}

HostReduction::HostReduction(HostChannel& channel, const HostPolicy& policy,
                             const Combination& combination, std::shared_ptr<const LeafPlan> leaves,
                             std::vector<Piece> pieces)
    : HostReduction(channel, only_direct(policy), combination, true, std::move(pieces),
                    std::move(leaves)) {
  start();
}

// Determines where this rank's tensors are, if other ranks may need to know.
void HostReduction::find_reach() {
  const std::size_t bytes = tensors_.bytes();
  const bool is_exposed =
      bytes > policy_.flat_limit || bytes >= policy_.registered_min || may_be_staged();
  if (!is_exposed && tensors_.leaves() == nullptr) return;
  for (const Piece& piece : tensors_.pieces()) {
    const HostMemory& host = channel_.host();
    inputs_.push_back(Reach::of(host, piece.input, tensors_.input_bytes(piece)));
    outputs_.push_back(Reach::of(host, piece.output, tensors_.bytes_of(piece.count)));
  }
}

// --- Arrival

void HostReduction::prepare() {
  is_direct_ = false;
  may_be_direct_ = false;
  started_ = false;
  staging_.reset();
  if (fits_line()) return copy_in(channel_.memory().line());
  const bool staged = may_be_staged();
  if (staged || tensors_.bytes() > policy_.flat_limit) {
    expose();
    if (!staged) {
      is_direct_ = true;
      return;
    }
    may_be_direct_ = is_seen(inputs_.front().place) && is_seen(outputs_.front().place);
    if (!channel_.memory().populate_slot(slot_bytes)) return void(status_ = no_memory());
    const Piece& piece = tensors_.pieces().front();
    staging_.emplace(channel_, combiner_, tensors_.element(), piece.input, piece.output,
                     tensors_.bytes());
    return staging_->begin();
  }
  const bool registered = tensors_.pieces().size() == 1 && !inputs_.empty() &&
                          inputs_.front().place == Place::registered &&
                          outputs_.front().place == Place::registered;
  own_place_ = registered                       ? Place::registered
               : contributes(tensors_.pieces()) ? Place::slot
                                                : Place::nothing;
  if (registered) return expose();
  const Exposure copied{0, 0, own_place_, Place::nothing};
  std::memcpy(channel_.memory().line(), &copied, sizeof copied);
  copy_into_slot();
}

void HostReduction::copy_into_slot() {
  if (channel_.memory().populate_slot(tensors_.bytes())) {
    copy_in(channel_.memory().slot());
  } else {
    status_ = no_memory();
  }
}

void HostReduction::copy_in(std::byte* target) const {
  for (const Piece& piece : tensors_.pieces()) {
    const std::size_t bytes = tensors_.bytes_of(piece.count);
    if (piece.input != nullptr && bytes > 0) std::memcpy(target, piece.input, bytes);
    target += bytes;
  }
}

void HostReduction::expose() {
  const std::vector<Piece>& pieces = tensors_.pieces();
  if (pieces.size() != 1 && !channel_.memory().populate_table()) return void(status_ = no_memory());
  std::byte* target = pieces.size() == 1 ? channel_.memory().line() : channel_.memory().table();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    give(inputs_[i], piece.input, tensors_.input_bytes(piece));
    if (piece.output != piece.input) {
      give(outputs_[i], piece.output, tensors_.bytes_of(piece.count));
    }
    const Exposure exposure{inputs_[i].where, outputs_[i].where, inputs_[i].place,
                            outputs_[i].place};
    std::memcpy(target + i * sizeof exposure, &exposure, sizeof exposure);
  }
}

Place HostReduction::place_of_copy(int member) const {
  if (member == channel_.rank()) return own_place_;
  Exposure exposure;
  std::memcpy(&exposure, channel_.memory().line_of(member), sizeof exposure);
  return exposure.input_place;
}

// --- Small: every rank combines copies

HostCollective::Work HostReduction::work() {
  if (fits_line()) {
    combine_copies(true);
    return Work::done;
  }
  if (staging_) return work_staged();
  return is_direct_ ? work_direct() : work_flat();
}

// This rank's own part is read from the tensor: its copy is moving to other ranks' caches.
void HostReduction::combine_copies(bool in_lines) {
  copies_.resize(static_cast<std::size_t>(channel_.size()));
  std::int64_t before = 0;
  for (std::size_t i = 0; i < tensors_.pieces().size(); ++i) {
    const Piece& piece = tensors_.pieces()[i];
    const ElementRange part = tensors_.own_part(i);
    std::byte* const target = tensors_.own_output(i, part.first);
    if (target != nullptr && part.count > 0) {
      const std::size_t offset = tensors_.bytes_of(before + part.first);
      std::size_t found = 0;
      for (int member = 0; member < channel_.size(); ++member) {
        if (member == channel_.rank()) {
          const std::byte* own = piece.input;
          if (own != nullptr) copies_[found++] = own + tensors_.bytes_of(part.first);
        } else if (in_lines) {
          copies_[found++] = channel_.memory().line_of(member) + offset;
        } else if (place_of_copy(member) != Place::nothing) {
          copies_[found++] = channel_.memory().slot_of(member) + offset;
        }
      }
      combiner_({&target, 1}, {copies_.data(), found}, part.count, Stores::cached);
      traffic_.combined += static_cast<std::int64_t>(tensors_.bytes_of(part.count));
    }
    before += piece.count;
  }
}

HostCollective::Work HostReduction::work_flat() {
  const int size = channel_.size();
  const auto in_slot = [&](int member) { return place_of_copy(member) != Place::registered; };
  if (!started_) {
    started_ = true;
    int copied = 0;
    for (int member = 0; member < size; ++member) copied += in_slot(member) ? 1 : 0;
    if (copied == 0) {  // all tensors are registered
      begin_direct();
      return work_direct();
    }
    // Some tensors are registered and some are not: copies all of them.
    if (!in_slot(channel_.rank())) {
      copy_into_slot();
      if (!status_.ok()) return Work::done;
      channel_.fill();
    }
  }
  for (int member = 0; member < size; ++member) {
    if (!in_slot(member) && !channel_.has_filled(member)) return Work::blocked;
  }
  combine_copies(false);
  return Work::done;
}

// --- Large and not accessible to other ranks: through slots

// Same on all ranks.
bool HostReduction::may_be_staged() const {
  return !tensors_.is_divided() &&
         Staging::suits(policy_, tensors_.bytes(), tensors_.pieces().size(), channel_.size());
}

void HostReduction::begin_staged() {
  started_ = true;
  std::vector<bool> contributing;
  bool all_seen = true;
  for (int member = 0; member < channel_.size(); ++member) {
    const Exposure exposure = tensors_.exposure_of(member, 0);
    contributing.push_back(exposure.input_place != Place::nothing);
    all_seen = all_seen && is_seen(exposure.input_place) && is_seen(exposure.output_place);
  }
  if (!all_seen) {
    may_be_direct_ = false;
    return staging_->contribute(std::move(contributing));
  }
  staging_.reset();
  begin_direct();
}

HostCollective::Work HostReduction::work_staged() {
  if (!started_) begin_staged();
  if (!staging_) return work_direct();
  if (staging_->done()) {
    traffic_.combined += static_cast<std::int64_t>(staging_->combined_bytes());
    return Work::done;
  }
  return staging_->advance() ? Work::more : Work::blocked;
}

// --- Large and accessible to all ranks

void HostReduction::begin_direct() {
  is_direct_ = true;
  started_ = true;
  direct_.begin();
}

HostCollective::Work HostReduction::work_direct() {
  if (!started_) begin_direct();
  status_ = direct_.combine_next();
  return status_.ok() && direct_.has_more() ? Work::more : Work::done;
}

}  // namespace rueda
