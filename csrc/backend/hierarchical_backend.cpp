// Collectives of process sets that span hosts. Whatever the members of a host can do in its memory
// is done there, so that data crosses each host's link no more often than necessary:
//
//   allreduce       see hierarchical_allreduce.h, hierarchical_compressed.h
//   reduce-scatter  reduce-scatter within, then a ring across hosts for each member's place
//   all-gather      a ring across hosts for each member's place, then all-gather within
//   broadcast       from host to host, then to all within; large ones in overlapping parts
//   all-to-all      gathered within by destination, see gathered_alltoall.h
#include <algorithm>
#include <cstring>
#include <limits>

#include "backend/backend.h"
#include "backend/broadcast_operation.h"
#include "backend/contribute.h"
#include "backend/gathered_alltoall.h"
#include "backend/hierarchical_allreduce.h"
#include "backend/hierarchical_compressed.h"
#include "backend/leaf_allreduce.h"
#include "backend/lengths.h"
#include "backend/narrowed_allreduce.h"
#include "backend/packed_allreduce.h"
#include "backend/packed_operation.h"
#include "backend/registered_buffers.h"
#include "backend/ring_operation.h"
#include "backend/sequence.h"
#include "backend/stages.h"

namespace rueda {

namespace {

// Position of each member's block in a reduce-scatter or an all-gather.
std::vector<Segment> blocks_of(const std::vector<std::int64_t>& lengths) {
  std::vector<Segment> blocks;
  std::int64_t offset = 0;
  for (const std::int64_t length : lengths) {
    blocks.push_back({offset, length});
    offset += length;
  }
  return blocks;
}

// The blocks that go around a ring, by host: those of the members with that place on their host.
std::vector<Segment> blocks_of_ring(const SetHosts& hosts, const std::vector<Segment>& blocks,
                                    int ring) {
  std::vector<Segment> segments;
  for (int host = 0; host < hosts.hosts(); ++host) {
    const bool has_one = ring < hosts.size(host);
    segments.push_back(has_one ? blocks[static_cast<std::size_t>(hosts.member(host, ring))]
                               : Segment{});
  }
  return segments;
}

// The member of this host that sends a member's block to other hosts, or receives it from them.
int carrier_of(const SetHosts& hosts, int member) {
  return hosts.member_of_ring(hosts.host(), hosts.index_of(member));
}

// The rings that this rank is part of, in the same order on all ranks, since they share a tag.
std::vector<int> own_rings(const SetHosts& hosts) {
  std::vector<int> rings;
  for (int ring = hosts.rank(); ring < hosts.max_size(); ring += hosts.size()) {
    rings.push_back(ring);
  }
  return rings;
}

class HierarchicalBackend final : public Backend {
 public:
  HierarchicalBackend(std::unique_ptr<Backend> inner, const HostPolicy& policy,
                      std::size_t kept_buffers)
      : inner_(std::move(inner)),
        policy_(policy_of_stages(policy)),
        buffers_(kept_buffers, allocate_registered) {}

  [[nodiscard]] std::string_view name() const override { return inner_->name(); }
  [[nodiscard]] std::shared_ptr<std::byte[]> allocate(const Lane& lane,
                                                      std::size_t bytes) override {
    return inner_->allocate(lane, bytes);
  }
  [[nodiscard]] bool may_be_eager(std::size_t bytes) const override {
    return inner_->may_be_eager(bytes);
  }

  std::unique_ptr<Operation> allreduce(const Lane& lane, const Reduction& reduction,
                                       std::vector<Piece> pieces) override {
    if (lane.hosts == nullptr) return inner_->allreduce(lane, reduction, std::move(pieces));
    if (reduction.leaves) {
      return std::make_unique<LeafAllreduce>(lane, reduction, std::move(pieces));
    }
    if (reduction.compression.codec != CodecKind::none) {
      // Regardless of size and batch, which must not affect a tensor's result.
      const bool one_ring = goes_around_one_ring(lane, std::numeric_limits<std::int64_t>::max());
      if (one_ring || lane.hosts->max_size() == 1) {
        return inner_->allreduce(lane, reduction, std::move(pieces));
      }
      return hierarchical_compressed(lane, policy_, buffers_, reduction, std::move(pieces));
    }
    if (reduction.wire) return narrowed_allreduce(*this, buffers_, lane, reduction, pieces);
    std::int64_t count = 0;
    for (const Piece& piece : pieces) count += piece.count;
    const auto bytes = count * static_cast<std::int64_t>(size_of(reduction.dtype));
    const Algorithm algorithm = lane.hosts->algorithms().choose(bytes);
    if (algorithm == Algorithm::ring) {
      return inner_->allreduce(lane, reduction, std::move(pieces));
    }
    const auto start = [&](const Piece& piece) {
      return hierarchical_allreduce(lane, policy_, reduction, piece, algorithm);
    };
    return must_pack(lane, reduction, pieces)
               ? packed_allreduce(buffers_, lane, reduction.dtype, pieces, start)
               : start(pieces.front());
  }

  std::unique_ptr<Operation> reduce_scatter(const Lane& lane, const Reduction& reduction,
                                            const std::byte* input, std::byte* output,
                                            std::vector<std::int64_t> lengths) override {
    const std::size_t element = size_of(reduction.dtype);
    const std::int64_t count = sum(lengths);
    const auto bytes = static_cast<std::size_t>(count) * element;
    if (goes_around_one_ring(lane, bytes) || lengths.size() > ChannelMemory::table_entries) {
      return inner_->reduce_scatter(lane, reduction, input, output, std::move(lengths));
    }
    const bool is_alone = lane.before_links == nullptr;
    const bool copies = !is_reachable_here(lane, input, bytes);
    const Segment own = blocks_of(lengths)[static_cast<std::size_t>(lane.rank)];
    return std::make_unique<PackedOperation>(
        buffers_, bytes,
        [&](std::byte* buffer) {
          if (is_alone) return contribute(buffer, input, count, reduction);
          if (copies) copy_bytes(buffer, input, bytes, Stores::cached);
        },
        [&](std::byte* buffer) {
          return reduce_blocks(lane, reduction, copies ? buffer : input, buffer,
                               blocks_of(lengths));
        },
        [=](const std::byte* buffer) {
          const auto length = static_cast<std::size_t>(own.count) * element;
          if (length > 0) {
            std::memcpy(output, buffer + static_cast<std::size_t>(own.offset) * element, length);
          }
        });
  }

  std::unique_ptr<Operation> allgather(const Lane& lane, const std::byte* input, std::byte* output,
                                       std::vector<std::int64_t> lengths) override {
    const auto bytes = static_cast<std::size_t>(sum(lengths));
    if (goes_around_one_ring(lane, bytes)) {
      return inner_->allgather(lane, input, output, std::move(lengths));
    }
    const std::vector<Segment> blocks = blocks_of(lengths);
    const Segment own = blocks[static_cast<std::size_t>(lane.rank)];
    const auto fill = [&](std::byte* target) {
      if (own.count > 0 && input != nullptr) {
        std::memcpy(target + own.offset, input, static_cast<std::size_t>(own.count));
      }
    };
    if (is_reachable_here(lane, output, bytes)) {
      fill(output);
      return gather_blocks(lane, output, bytes, blocks);
    }
    return std::make_unique<PackedOperation>(
        buffers_, bytes, fill,
        [&](std::byte* buffer) { return gather_blocks(lane, buffer, bytes, blocks); },
        [=](const std::byte* buffer) { copy_bytes(output, buffer, bytes, Stores::cached); });
  }

  std::unique_ptr<Operation> broadcast(const Lane& lane, std::byte* data, std::int64_t bytes,
                                       int root) override {
    const auto length = static_cast<std::size_t>(bytes);
    if (goes_around_one_ring(lane, length)) return inner_->broadcast(lane, data, bytes, root);
    if (is_reachable_here(lane, data, length)) return spread(lane, data, bytes, root);
    const bool is_root = lane.rank == root;
    return std::make_unique<PackedOperation>(
        buffers_, length,
        [&](std::byte* buffer) {
          if (is_root) copy_bytes(buffer, data, length, Stores::cached);
        },
        [&](std::byte* buffer) { return spread(lane, buffer, bytes, root); },
        [=](const std::byte* buffer) {
          if (!is_root) copy_bytes(data, buffer, length, Stores::cached);
        });
  }

  std::unique_ptr<Operation> alltoall(const Lane& lane, AlltoallInput input,
                                      AllocateRows allocate) override {
    if (may_gather(lane)) {
      return std::make_unique<GatheredAlltoall>(lane, policy_, buffers_, std::move(input),
                                                std::move(allocate));
    }
    return inner_->alltoall(lane, std::move(input), std::move(allocate));
  }

 private:
  static bool goes_around_one_ring(const Lane& lane, std::size_t bytes) {
    return lane.hosts == nullptr ||
           lane.hosts->algorithms().choose(static_cast<std::int64_t>(bytes)) == Algorithm::ring;
  }

  // Same on all ranks, although each of them knows only its own sizes.
  static bool may_gather(const Lane& lane) {
    if (lane.hosts == nullptr || lane.hosts->max_size() == 1) return false;
    const auto& rows = lane.hosts->alltoall().rows();
    const bool never = rows.size() == 1 && rows.front().algorithm == Algorithm::pairwise;
    return !never && lane.members->size() <= GatheredAlltoall::max_members;
  }

  // For several tensors, or one that some member here cannot read or write. Decided by this rank.
  static bool must_pack(const Lane& lane, const Reduction& reduction,
                        const std::vector<Piece>& pieces) {
    const Piece& piece = pieces.front();
    const std::size_t bytes = static_cast<std::size_t>(piece.count) * size_of(reduction.dtype);
    return pieces.size() > 1 || piece.output == nullptr ||
           !is_reachable_here(lane, piece.input, bytes) ||
           !is_reachable_here(lane, piece.output, bytes);
  }

  // The member that carries a block combines it on this host; a ring delivers it to its owner.
  [[nodiscard]] std::unique_ptr<Operation> reduce_blocks(const Lane& lane,
                                                         const Reduction& reduction,
                                                         const std::byte* input, std::byte* buffer,
                                                         const std::vector<Segment>& blocks) {
    const SetHosts& hosts = *lane.hosts;
    const std::size_t element = size_of(reduction.dtype);
    std::vector<Sequence::Step> steps;
    if (lane.before_links != nullptr) {
      std::vector<Piece> pieces;
      for (int member = 0; member < lane.size(); ++member) {
        const Segment block = blocks[static_cast<std::size_t>(member)];
        const std::size_t offset = static_cast<std::size_t>(block.offset) * element;
        const bool carries = carrier_of(hosts, member) == hosts.rank();
        pieces.push_back({input == nullptr ? nullptr : input + offset,
                          carries ? buffer + offset : nullptr, block.count});
      }
      steps.emplace_back(
          [=, this, pieces = std::move(pieces), ticket = line_up(lane.before_links, 1)] {
            return reduce_within(lane, policy_, reduction, pieces, ticket);
          });
    }
    for (const int ring : own_rings(hosts)) {
      steps.emplace_back([=, segments = blocks_of_ring(hosts, blocks, ring)] {
        const Lane across = lane_across(lane, ring);
        return std::make_unique<RingOperation>(
            across,
            RingPlan::reduce_scatter(across.rank, segments, chunk_elements(across, element)),
            buffer, element, &reduction);
      });
    }
    return std::make_unique<Sequence>(std::move(steps));
  }

  // This rank's block is already in `output`.
  [[nodiscard]] std::unique_ptr<Operation> gather_blocks(const Lane& lane, std::byte* output,
                                                         std::size_t bytes,
                                                         const std::vector<Segment>& blocks) {
    const SetHosts& hosts = *lane.hosts;
    std::vector<Sequence::Step> steps;
    for (const int ring : own_rings(hosts)) {
      steps.emplace_back([=, segments = blocks_of_ring(hosts, blocks, ring)] {
        const Lane across = lane_across(lane, ring);
        return std::make_unique<RingOperation>(
            across, RingPlan::allgather(across.rank, segments, lane.chunk_bytes), output, 1,
            nullptr);
      });
    }
    if (lane.after_links != nullptr) {
      std::vector<HostPull::Transfer> transfers;
      for (int member = 0; member < lane.size(); ++member) {
        const Segment block = blocks[static_cast<std::size_t>(member)];
        const int from = carrier_of(hosts, member);
        if (from == hosts.rank()) continue;
        const auto offset = static_cast<std::size_t>(block.offset);
        transfers.push_back({from, offset, output + offset, static_cast<std::size_t>(block.count)});
      }
      steps.emplace_back(
          [=, this, transfers = std::move(transfers), ticket = line_up(lane.after_links, 1)] {
            return pull_within(lane, policy_, output, bytes, transfers, ticket);
          });
    }
    return std::make_unique<Sequence>(std::move(steps));
  }

  // From the root to one member of each other host, and from these to all members.
  [[nodiscard]] std::unique_ptr<Operation> spread(const Lane& lane, std::byte* data,
                                                  std::int64_t bytes, int root) {
    const SetHosts& hosts = *lane.hosts;
    const int root_host = hosts.host_of(root);
    const int carrier = hosts.host() == root_host ? hosts.index_of(root) : 0;
    const bool carries = carrier == hosts.rank();
    const auto across = std::make_shared<std::vector<int>>(hosts.across(0));
    (*across)[static_cast<std::size_t>(root_host)] = lane.world_rank(root);
    const std::int64_t parts = parts_of(lane.chunk_bytes, bytes, 1);
    const std::uint64_t ticket = line_up(lane.after_links, parts);
    const auto steps = [=, this](std::int64_t part) -> std::vector<Sequence::Step> {
      const Segment segment = cut(bytes, parts, part);
      std::byte* const begin = data + segment.offset;
      const auto length = static_cast<std::size_t>(segment.count);
      const auto cross = [=]() -> std::unique_ptr<Operation> {
        if (!carries) return nullptr;
        Lane links = lane_of_part(lane_across(lane, 0), part);
        links.members = across.get();
        return std::make_unique<BroadcastOperation>(links, begin, segment.count, root_host);
      };
      const auto pull = [=, this]() -> std::unique_ptr<Operation> {
        if (lane.after_links == nullptr) return nullptr;
        std::vector<HostPull::Transfer> transfers;
        if (!carries) transfers.push_back({carrier, 0, begin, length});
        return pull_within(lane, policy_, carries ? begin : nullptr, length, std::move(transfers),
                           ticket + static_cast<std::uint64_t>(part));
      };
      return {cross, pull};
    };
    return std::make_unique<Pipeline>(parts, parts_under_way, steps);
  }

  const std::unique_ptr<Backend> inner_;
  const HostPolicy policy_;
  BufferPool buffers_;
};

}  // namespace

std::unique_ptr<Backend> make_hierarchical_backend(std::unique_ptr<Backend> inner,
                                                   const HostPolicy& policy,
                                                   std::size_t kept_buffers) {
  return std::make_unique<HierarchicalBackend>(std::move(inner), policy, kept_buffers);
}

}  // namespace rueda
