#include "onehost/direct_reduction.h"

#include <algorithm>

#include "onehost/host_reach.h"

namespace rueda {

ElementRange share_of(std::int64_t count, std::size_t element, int rank, int ranks) {
  const auto line = std::max<std::int64_t>(1, 64 / static_cast<std::int64_t>(element));
  const std::int64_t lines = (count + line - 1) / line;
  const auto first_of = [&](std::int64_t of) { return std::min(count, lines * of / ranks * line); };
  const std::int64_t first = first_of(rank);
  return {first, first_of(rank + std::int64_t{1}) - first};
}

DirectReduction::DirectReduction(HostChannel& channel, const HostPolicy& policy,
                                 const HostTensors& tensors, const Combination& combination,
                                 const Combiner& combiner, HostCollective::Traffic& traffic)
    : channel_(channel),
      policy_(policy),
      tensors_(tensors),
      combiner_(combiner),
      traffic_(traffic),
      chunk_(
          std::max<std::int64_t>(1, static_cast<std::int64_t>(policy.chunk / tensors.element()))) {
  if (tensors.leaves() == nullptr) return;
  tree_.emplace(combination, tensors.leaves()->merges);
  order_ = tensors.leaves()->places();
}

void DirectReduction::begin() {
  if (sources_.capacity() == 0) {
    targets_.reserve(static_cast<std::size_t>(channel_.size()));
    sources_.reserve(tensors_.input_count());
  }
  has_more_ = true;
  claims_ = nullptr;
  const std::int64_t chunks = (tensors_.count() + chunk_ - 1) / chunk_;
  const bool is_claimed = chunks > channel_.size() && !tensors_.is_divided();
  if (is_claimed) {
    claims_ = &channel_.divide_work(static_cast<std::uint64_t>(chunks));
    return;
  }
  const ElementRange own = tensors_.is_divided() ? tensors_.own_part(0)
                                                 : share_of(tensors_.count(), tensors_.element(),
                                                            channel_.rank(), channel_.size());
  own_next_ = own.first;
  own_end_ = own.first + own.count;
}

Status DirectReduction::combine_next() {
  if (claims_ != nullptr) {
    const auto chunk = claims_->claim();
    has_more_ = chunk.has_value();
    if (!has_more_) return {};
    const std::int64_t first = static_cast<std::int64_t>(*chunk) * chunk_;
    return combine_chunk(first, std::min(chunk_, tensors_.count() - first));
  }
  const std::int64_t first = own_next_;
  own_next_ = std::min(own_end_, first + chunk_);
  has_more_ = own_next_ < own_end_;
  return combine_chunk(first, own_next_ - first);
}

Status DirectReduction::combine_chunk(std::int64_t first, std::int64_t count) {
  const std::vector<Piece>& pieces = tensors_.pieces();
  for (std::size_t i = 0; i < pieces.size() && count > 0; ++i) {
    const std::int64_t length = pieces[i].count;
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

Status DirectReduction::combine_part(const Part& part) {
  sources_.clear();
  targets_.clear();
  pushes_.clear();
  for (int member = 0; member < channel_.size(); ++member) {
    if (member == channel_.rank()) {
      add_own(part);
      continue;
    }
    const Exposure exposure = tensors_.exposure_of(member, part.piece);
    if (Status status = add_inputs(member, exposure, part); !status.ok()) return status;
    add_output(member, exposure, part);
  }
  if (targets_.empty()) {
    if (pushes_.empty()) return {};
    targets_.push_back(scratch(tensors_.input_count()));
  }
  combine(part.count);
  const std::size_t bytes = tensors_.bytes_of(part.count);
  traffic_.combined += static_cast<std::int64_t>(bytes);
  return pushes_.empty() ? Status() : push(bytes);
}

// Appends this rank's contribution to `part` to `sources_`, and its place for the result to
// `targets_`.
void DirectReduction::add_own(const Part& part) {
  const Piece& own = tensors_.pieces()[part.piece];
  if (own.input != nullptr) {
    const std::byte* input = own.input + tensors_.bytes_of(part.first);
    for (int left = tensors_.inputs_of(channel_.rank()); left > 0; --left) {
      sources_.push_back(input);
      input += tensors_.bytes_of(own.count);
    }
  }
  std::byte* const output = tensors_.own_output(part.piece, part.first);
  if (output != nullptr) targets_.push_back(output);
}

// The same for another rank if its tensor is mapped here; otherwise the contribution is read.
Status DirectReduction::add_inputs(int member, const Exposure& exposure, const Part& part) {
  const HostMemory& host = channel_.host();
  const int peer = channel_.host_rank(member);
  const std::size_t bytes = tensors_.bytes_of(part.count);
  Reach input = Reach{exposure.input_place, exposure.input}.at(tensors_.bytes_of(part.first));
  for (int left = tensors_.inputs_of(member); left > 0; --left) {
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
    input = input.at(tensors_.bytes_of(tensors_.pieces()[part.piece].count));
  }
  return {};
}

// If the result cannot be written straight to another rank, it is pushed afterwards.
void DirectReduction::add_output(int member, const Exposure& exposure, const Part& part) {
  const int peer = channel_.host_rank(member);
  const Reach output =
      Reach{exposure.output_place, exposure.output}.at(tensors_.bytes_of(part.first));
  if (std::byte* const seen = output.seen(channel_.host(), peer)) {
    targets_.push_back(seen);
  } else if (output.place == Place::address) {
    if (pushes_.capacity() == 0) pushes_.reserve(static_cast<std::size_t>(channel_.size()));
    pushes_.push_back({peer, output.where});
  }
}

void DirectReduction::combine(std::int64_t count) {
  const bool streams = tensors_.bytes() >= policy_.streaming_min && pushes_.empty();
  const Stores stores = streams ? Stores::streaming : Stores::cached;
  if (!tree_) return combiner_(targets_, sources_, count, stores);
  ordered_.clear();
  for (const std::size_t source : order_) ordered_.push_back(sources_[source]);
  (*tree_)(targets_, ordered_, count, stores);
}

// Writes the result to ranks whose tensors are not mapped here.
Status DirectReduction::push(std::size_t bytes) {
  for (const Push& each : pushes_) {
    Status status = channel_.host().write_to(each.host_rank, targets_.front(), each.where, bytes);
    if (!status.ok()) return status;
    traffic_.kernel += static_cast<std::int64_t>(bytes);
  }
  return {};
}

// Room for a chunk of each input, plus a result that is not needed on this rank.
std::byte* DirectReduction::scratch(std::size_t index) const {
  const std::size_t chunk = tensors_.bytes_of(std::min(chunk_, tensors_.count()));
  return channel_.scratch().take((tensors_.input_count() + 1) * chunk) + index * chunk;
}

}  // namespace rueda
