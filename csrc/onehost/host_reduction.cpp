#include "onehost/host_reduction.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "reduce/reduce.h"

namespace rueda {

namespace {

// Whether no other rank has to ask the kernel for what lies there.
bool is_seen(Place place) {
  return place != Place::address;
}

HostPolicy only_direct(HostPolicy policy) {
  policy.flat_limit = 0;
  policy.staged_limit = 0;
  return policy;
}

// Where each source of `plan` is among all inputs by member.
std::vector<std::size_t> order_of(const LeafPlan& plan) {
  std::vector<std::size_t> order;
  for (const LeafPlan::Source& source : plan.sources) {
    const auto before =
        std::accumulate(plan.partials.begin(), plan.partials.begin() + source.rank, source.number);
    order.push_back(static_cast<std::size_t>(before));
  }
  return order;
}

}  // namespace

HostReduction::HostReduction(HostChannel& channel, const HostPolicy& policy,
                             const Combination& combination, int contributors,
                             std::vector<Piece> pieces, Begin begin)
    : HostCollective(channel, policy),
      element_(size_of(combination.dtype)),
      all_contribute_(contributors == channel.size()),
      combination_(combination),
      combiner_(combination),
      pieces_(std::move(pieces)) {
  for (const Piece& piece : pieces_) count_ += piece.count;
  bytes_ = bytes_of(count_);
  if (bytes_ > policy_.flat_limit || bytes_ >= policy_.registered_min) {
    for (const Piece& piece : pieces_) {
      inputs_.push_back(Reach::of(channel_.host(), piece.input, bytes_of(piece.count)));
      outputs_.push_back(Reach::of(channel_.host(), piece.output, bytes_of(piece.count)));
    }
  }
  const auto ranks = static_cast<std::size_t>(channel_.size());
  sources_.reserve(ranks);
  targets_.reserve(ranks);
  pushes_.reserve(ranks);
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
  own_part_ = Range{std::accumulate(lengths.begin(), own, std::int64_t{0}), *own};
  // Nobody else writes it.
  for (Reach& reach : outputs_) reach = {};
}

HostReduction::HostReduction(HostChannel& channel, const HostPolicy& policy,
                             const Combination& combination, std::shared_ptr<const LeafPlan> leaves,
                             std::vector<Piece> pieces)
    : HostCollective(channel, only_direct(policy)),
      element_(size_of(combination.dtype)),
      all_contribute_(true),
      combination_(combination),
      combiner_(combination),
      leaves_(std::move(leaves)),
      tree_(std::in_place, combination, leaves_->merges),
      pieces_(std::move(pieces)),
      order_(order_of(*leaves_)) {
  for (const Piece& piece : pieces_) {
    count_ += piece.count;
    inputs_.push_back(Reach::of(channel_.host(), piece.input, input_bytes(piece)));
    outputs_.push_back(Reach::of(channel_.host(), piece.output, bytes_of(piece.count)));
  }
  bytes_ = bytes_of(count_);
  start();
}

std::size_t HostReduction::input_bytes(const Piece& piece) const {
  return bytes_of(piece.count) * static_cast<std::size_t>(inputs_of(channel_.rank()));
}

// --- Arrival

void HostReduction::prepare() {
  direct_ = false;
  may_be_direct_ = false;
  started_ = false;
  staging_.reset();
  if (fits_line()) return copy_in(channel_.line().data());
  if (bytes_ > policy_.flat_limit) {
    expose();
    if (!may_be_staged()) {
      direct_ = true;
      return;
    }
    may_be_direct_ = is_seen(inputs_.front().place) && is_seen(outputs_.front().place);
    if (!channel_.populate_slot(slot_bytes)) return void(status_ = no_memory());
    const Piece& piece = pieces_.front();
    staging_.emplace(channel_, combiner_, element_, piece.input, piece.output, bytes_);
    return staging_->begin();
  }
  const bool registered = pieces_.size() == 1 && !inputs_.empty() &&
                          inputs_.front().place == Place::registered &&
                          outputs_.front().place == Place::registered;
  own_place_ = registered ? Place::registered : contributes(pieces_) ? Place::slot : Place::nothing;
  if (registered) return expose();
  const Exposure copied{0, 0, own_place_, Place::nothing};
  std::memcpy(channel_.line().data(), &copied, sizeof copied);
  copy_into_slot();
}

void HostReduction::copy_into_slot() {
  if (channel_.populate_slot(bytes_)) {
    copy_in(channel_.slot());
  } else {
    status_ = no_memory();
  }
}

void HostReduction::copy_in(std::byte* target) const {
  for (const Piece& piece : pieces_) {
    const std::size_t bytes = bytes_of(piece.count);
    if (piece.input != nullptr && bytes > 0) std::memcpy(target, piece.input, bytes);
    target += bytes;
  }
}

void HostReduction::expose() {
  if (pieces_.size() != 1 && !channel_.populate_table()) return void(status_ = no_memory());
  std::byte* target = pieces_.size() == 1 ? channel_.line().data() : channel_.table();
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    give(inputs_[i], piece.input, input_bytes(piece));
    if (piece.output != piece.input) give(outputs_[i], piece.output, bytes_of(piece.count));
    const Exposure exposure{inputs_[i].where, outputs_[i].where, inputs_[i].place,
                            outputs_[i].place};
    std::memcpy(target + i * sizeof exposure, &exposure, sizeof exposure);
  }
}

Exposure HostReduction::exposure_of(int member, std::size_t piece) const {
  Exposure exposure;
  const std::byte* source =
      pieces_.size() == 1 ? channel_.line_of(member) : channel_.table_of(member);
  std::memcpy(&exposure, source + piece * sizeof exposure, sizeof exposure);
  return exposure;
}

Place HostReduction::place_of_copy(int member) const {
  if (member == channel_.rank()) return own_place_;
  Exposure exposure;
  std::memcpy(&exposure, channel_.line_of(member), sizeof exposure);
  return exposure.input_place;
}

std::byte* HostReduction::own_output(std::size_t piece, std::int64_t first) const {
  std::byte* output = pieces_[piece].output;
  return output == nullptr ? nullptr
                           : output + bytes_of(first - (own_part_ ? own_part_->first : 0));
}

// --- Small: everybody combines copies

HostCollective::Work HostReduction::work() {
  if (fits_line()) {
    combine_copies(true);
    return Work::done;
  }
  if (staging_) return work_staged();
  return direct_ ? work_direct() : work_flat();
}

// All of `sources_`. Where nobody contributes, as of a host whose ranks have joined, that is the
// identity.
void HostReduction::combine(std::span<std::byte* const> targets, std::int64_t count,
                            Stores stores) {
  if (tree_) {
    ordered_.clear();
    for (const std::size_t source : order_) ordered_.push_back(sources_[source]);
    return (*tree_)(targets, ordered_, count, stores);
  }
  if (!sources_.empty()) return combiner_(targets, sources_, count, stores);
  for (std::byte* target : targets) {
    fill_identity(target, count, combination_.dtype, combination_.op);
  }
}

// This rank's own part is taken from the tensor: its copy is on its way to the others' caches.
void HostReduction::combine_copies(bool in_lines) {
  std::int64_t before = 0;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Range range = own_part_.value_or(Range{0, pieces_[i].count});
    if (std::byte* const target = own_output(i, range.first);
        target != nullptr && range.count > 0) {
      sources_.clear();
      for (int member = 0; member < channel_.size(); ++member) {
        if (member == channel_.rank()) {
          const std::byte* own = pieces_[i].input;
          if (own != nullptr) sources_.push_back(own + bytes_of(range.first));
          continue;
        }
        if (!in_lines && place_of_copy(member) == Place::nothing) continue;
        sources_.push_back((in_lines ? channel_.line_of(member) : channel_.slot_of(member)) +
                           bytes_of(before + range.first));
      }
      combine({&target, 1}, range.count, Stores::cached);
      traffic_.combined += static_cast<std::int64_t>(bytes_of(range.count));
    }
    before += pieces_[i].count;
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
      direct_ = true;
      started_ = false;
      return work_direct();
    }
    // Some tensors are registered and some are not: all are copied.
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

// --- Large, where the ranks do not see each other's tensors: through slots

// The same on all ranks.
bool HostReduction::may_be_staged() const {
  return bytes_ <= policy_.staged_limit && pieces_.size() == 1 && !own_part_ &&
         Staging::is_possible(channel_.size());
}

void HostReduction::begin_staged() {
  started_ = true;
  std::vector<bool> contributing;
  bool all_seen = true;
  for (int member = 0; member < channel_.size(); ++member) {
    const Exposure exposure = exposure_of(member, 0);
    contributing.push_back(exposure.input_place != Place::nothing);
    all_seen = all_seen && is_seen(exposure.input_place) && is_seen(exposure.output_place);
  }
  if (!all_seen) {
    may_be_direct_ = false;
    return staging_->contribute(std::move(contributing));
  }
  staging_.reset();
  direct_ = true;
  started_ = false;
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

// --- Large: each chunk is combined once, into the tensors of all

void HostReduction::begin_direct() {
  started_ = true;
  const auto size = static_cast<std::int64_t>(channel_.size());
  chunk_ = std::max<std::int64_t>(1, static_cast<std::int64_t>(policy_.chunk / element_));
  const std::int64_t chunks = (count_ + chunk_ - 1) / chunk_;
  claims_ = chunks > size && !own_part_;
  if (claims_) return channel_.divide_work(static_cast<std::uint64_t>(chunks));
  if (own_part_) {
    own_next_ = own_part_->first;
    own_end_ = own_next_ + own_part_->count;
    return;
  }
  // Shares begin on cache lines, as long as tensors do.
  const auto line = std::max<std::int64_t>(1, 64 / static_cast<std::int64_t>(element_));
  const std::int64_t lines = (count_ + line - 1) / line;
  const std::int64_t rank = channel_.rank();
  own_next_ = std::min(count_, lines * rank / size * line);
  own_end_ = std::min(count_, lines * (rank + 1) / size * line);
}

HostCollective::Work HostReduction::work_direct() {
  if (!started_) begin_direct();
  if (claims_) {
    const auto chunk = channel_.claim();
    if (!chunk) return Work::done;
    const std::int64_t first = static_cast<std::int64_t>(*chunk) * chunk_;
    if (status_.ok()) status_ = combine_chunk(first, std::min(chunk_, count_ - first));
    return Work::more;
  }
  const std::int64_t count = std::min(chunk_, own_end_ - own_next_);
  if (count > 0) status_ = combine_chunk(own_next_, count);
  own_next_ += count;
  return own_next_ < own_end_ && status_.ok() ? Work::more : Work::done;
}

Status HostReduction::combine_chunk(std::int64_t first, std::int64_t count) {
  for (std::size_t i = 0; i < pieces_.size() && count > 0; ++i) {
    const std::int64_t length = pieces_[i].count;
    if (first < length) {
      const Part part{i, first, std::min(count, length - first)};
      if (Status status = combine_part(part); !status.ok()) return status;
      count -= part.count;
      first += part.count;
    }
    first -= length;
  }
  return {};
}

// For a chunk of each input, and one for a result that has no place here.
std::byte* HostReduction::scratch(std::size_t index) const {
  const std::size_t chunk = bytes_of(std::min(chunk_, count_));
  return channel_.scratch((input_count() + 1) * chunk) + index * chunk;
}

// Appends to `sources_` what a member contributes to `part`.
Status HostReduction::find_inputs(int member, const Part& part) {
  const HostMemory& host = channel_.host();
  const std::size_t bytes = bytes_of(part.count);
  const std::size_t stride = bytes_of(pieces_[part.piece].count);
  for (int number = 0; number < inputs_of(member); ++number) {
    const std::size_t offset = bytes_of(part.first) + static_cast<std::size_t>(number) * stride;
    if (member == channel_.rank()) {
      const std::byte* const own = pieces_[part.piece].input;
      if (own != nullptr) sources_.push_back(own + offset);
      continue;
    }
    const Exposure exposure = exposure_of(member, part.piece);
    const Reach input = Reach{exposure.input_place, exposure.input}.at(offset);
    const int peer = channel_.host_rank(member);
    if (const std::byte* seen = input.seen(host, peer)) {
      sources_.push_back(seen);
    } else if (input.place == Place::address) {
      std::byte* const copy = scratch(sources_.size());
      if (Status status = host.read_from(peer, copy, input.where, bytes); !status.ok()) {
        return status;
      }
      traffic_.kernel += static_cast<std::int64_t>(bytes);
      sources_.push_back(copy);
    }
  }
  return {};
}

Status HostReduction::combine_part(const Part& part) {
  const HostMemory& host = channel_.host();
  const std::size_t offset = bytes_of(part.first);
  const std::size_t bytes = bytes_of(part.count);
  const auto ranks = static_cast<std::size_t>(channel_.size());
  sources_.clear();
  targets_.clear();
  pushes_.clear();
  for (std::size_t i = 0; i < ranks; ++i) {
    const auto member = static_cast<int>(i);
    const int peer = channel_.host_rank(member);
    if (Status status = find_inputs(member, part); !status.ok()) return status;
    if (member == channel_.rank()) {
      const Piece& own = pieces_[part.piece];
      if (own.output != nullptr) targets_.push_back(own_output(part.piece, part.first));
      continue;
    }
    const Exposure exposure = exposure_of(member, part.piece);
    const Reach output = Reach{exposure.output_place, exposure.output}.at(offset);
    if (std::byte* seen = output.seen(host, peer)) {
      targets_.push_back(seen);
    } else if (output.place == Place::address) {
      pushes_.push_back({peer, output.where});
    }
  }
  if (targets_.empty()) {
    if (pushes_.empty()) return {};
    targets_.push_back(scratch(input_count()));
  }
  const Stores stores =
      bytes_ >= policy_.streaming_min && pushes_.empty() ? Stores::streaming : Stores::cached;
  combine(targets_, part.count, stores);
  traffic_.combined += static_cast<std::int64_t>(bytes);
  for (const Push& push : pushes_) {
    if (Status status = host.write_to(push.member, targets_.front(), push.where, bytes);
        !status.ok()) {
      return status;
    }
    traffic_.kernel += static_cast<std::int64_t>(bytes);
  }
  return {};
}

}  // namespace rueda
