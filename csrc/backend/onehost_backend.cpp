#include <algorithm>

#include "backend/backend.h"
#include "backend/compressed_allreduce.h"
#include "backend/leaf_allreduce.h"
#include "backend/lengths.h"
#include "backend/narrowed_allreduce.h"
#include "backend/packed_allreduce.h"
#include "backend/packed_operation.h"
#include "backend/registered_buffers.h"
#include "onehost/host_pull.h"
#include "onehost/host_reduction.h"

namespace rueda {

namespace {

// Batches whose tensors average less than this are packed: copying 16 KiB twice takes as long as
// two system calls.
constexpr std::size_t packed_below = 16 << 10;

// Makes a collective in the lane's channel that counts its traffic in the lane's counters.
template <class Collective, class... Arguments>
std::unique_ptr<Operation> counted(const Lane& lane, Arguments&&... arguments) {
  auto collective =
      std::make_unique<Collective>(*lane.channel, std::forward<Arguments>(arguments)...);
  collective->count_in(*lane.counters);
  return collective;
}

class OnehostBackend : public Backend {
 public:
  OnehostBackend(AlgorithmTable algorithms, const HostPolicy& policy, std::size_t kept_buffers)
      : algorithms_(std::move(algorithms)),
        policy_(policy),
        buffers_(kept_buffers, allocate_registered),
        ring_(make_ring_backend(kept_buffers)) {}

  [[nodiscard]] std::string_view name() const override { return "onehost"; }

  [[nodiscard]] bool may_be_eager(std::size_t bytes) const override {
    const auto policy = rueda::policy_for(algorithms_, policy_, bytes);
    return policy && bytes <= std::max(policy->flat_limit, line_bytes);
  }

  std::unique_ptr<Operation> allreduce(const Lane& lane, const Reduction& reduction,
                                       std::vector<Piece> pieces) override {
    if (reduction.compression.codec != CodecKind::none) {
      return compressed_allreduce(lane, reduction, std::move(pieces));
    }
    if (reduction.wire) {
      return narrowed_allreduce(*this, buffers_, lane, reduction, pieces);
    }
    std::int64_t count = 0;
    for (const Piece& piece : pieces) count += piece.count;
    const std::size_t bytes = static_cast<std::size_t>(count) * size_of(reduction.dtype);
    const auto policy = policy_for(lane, bytes);
    if (!policy) return ring_->allreduce(lane, reduction, std::move(pieces));
    if (reduction.leaves) return leaf_allreduce(lane, *policy, reduction, std::move(pieces));
    const bool staged = Staging::suits(*policy, bytes, pieces.size(), lane.size());
    if (!staged && bytes > policy->flat_limit &&
        (are_small(pieces, bytes) || must_pack(lane, reduction, pieces))) {
      return packed_allreduce(buffers_, lane, reduction.dtype, pieces, [&](const Piece& all) {
        return host_allreduce(lane, *policy, reduction, {all});
      });
    }
    return host_allreduce(lane, *policy, reduction, std::move(pieces));
  }

  std::unique_ptr<Operation> reduce_scatter(const Lane& lane, const Reduction& reduction,
                                            const std::byte* input, std::byte* output,
                                            std::vector<std::int64_t> lengths) override {
    const std::size_t bytes = static_cast<std::size_t>(sum(lengths)) * size_of(reduction.dtype);
    const auto policy = policy_for(lane, bytes);
    if (!policy) return ring_->reduce_scatter(lane, reduction, input, output, std::move(lengths));
    const auto start = [=](const std::byte* data) -> std::unique_ptr<Operation> {
      return counted<HostReduction>(lane, *policy, combination_of(reduction),
                                    reduction.contributors, data, output, lengths);
    };
    return input == nullptr ? start(nullptr) : offer(lane, *policy, input, bytes, start);
  }

  std::unique_ptr<Operation> allgather(const Lane& lane, const std::byte* input, std::byte* output,
                                       std::vector<std::int64_t> lengths) override {
    const auto policy = policy_for(lane, static_cast<std::size_t>(sum(lengths)));
    if (!policy) return ring_->allgather(lane, input, output, std::move(lengths));
    auto plan = [output, lengths](const HostPull& pull) {
      std::vector<HostPull::Transfer> transfers;
      std::byte* target = output;
      for (int member = 0; member < pull.size(); ++member) {
        const auto bytes = static_cast<std::size_t>(lengths[static_cast<std::size_t>(member)]);
        transfers.push_back({member, 0, target, bytes});
        target += bytes;
      }
      return transfers;
    };
    const auto own = static_cast<std::size_t>(lengths[static_cast<std::size_t>(lane.rank)]);
    return pull(lane, *policy, input, own, {}, std::move(plan));
  }

  std::unique_ptr<Operation> broadcast(const Lane& lane, std::byte* data, std::int64_t bytes,
                                       int root) override {
    const auto length = static_cast<std::size_t>(bytes);
    const auto policy = policy_for(lane, length);
    if (!policy) return ring_->broadcast(lane, data, bytes, root);
    auto plan = [=](const HostPull& pull) {
      std::vector<HostPull::Transfer> transfers;
      if (pull.rank() != root) transfers.push_back({root, 0, data, length});
      return transfers;
    };
    return pull(lane, *policy, lane.rank == root ? data : nullptr, length, {}, std::move(plan));
  }

  std::unique_ptr<Operation> alltoall(const Lane& lane, AlltoallInput input,
                                      AllocateRows allocate) override {
    // Its size differs between ranks, so the choice must not depend on it.
    if (lane.size() > static_cast<int>(ChannelMemory::table_entries)) {
      return ring_->alltoall(lane, std::move(input), std::move(allocate));
    }
    const auto policy = policy_for(lane, SIZE_MAX >> 1);
    if (!policy) return ring_->alltoall(lane, std::move(input), std::move(allocate));
    const std::size_t bytes = static_cast<std::size_t>(sum(input.rows)) * input.row_bytes;
    std::vector<std::int64_t> rows = input.rows;
    const std::byte* data = input.data;
    auto plan = [input = std::move(input), allocate = std::move(allocate)](const HostPull& pull) {
      return rows_to_take(pull, input.row_bytes, allocate);
    };
    return this->pull(lane, *policy, data, bytes, std::move(rows), std::move(plan));
  }

 private:
  // nullopt for the ring.
  [[nodiscard]] std::optional<HostPolicy> policy_for(const Lane& lane, std::size_t bytes) const {
    if (lane.channel == nullptr) return std::nullopt;
    return rueda::policy_for(algorithms_, policy_, bytes);
  }

  // Whether packing the pieces is faster than asking the kernel for each of them. Same on all
  // ranks.
  static bool are_small(const std::vector<Piece>& pieces, std::size_t bytes) {
    return pieces.size() > 1 && bytes / pieces.size() < packed_below;
  }

  // Same on all ranks, except for a single tensor, where ranks need not agree.
  static bool must_pack(const Lane& lane, const Reduction& reduction,
                        const std::vector<Piece>& pieces) {
    if (pieces.size() > ChannelMemory::table_entries) return true;
    const HostMemory& host = lane.channel->host();
    if (host.has_direct_access()) return false;
    if (pieces.size() > 1) return true;
    const Piece& piece = pieces.front();
    const std::size_t bytes = static_cast<std::size_t>(piece.count) * size_of(reduction.dtype);
    const int inputs = reduction.leaves ? reduction.leaves->partials_of(lane.rank) : 1;
    const auto reachable = [&](const std::byte* data, std::size_t length) {
      return data == nullptr || length == 0 || host.is_reachable(data, length);
    };
    return !reachable(piece.input, static_cast<std::size_t>(inputs) * bytes) ||
           !reachable(piece.output, bytes);
  }

  std::unique_ptr<Operation> leaf_allreduce(const Lane& lane, const HostPolicy& policy,
                                            const Reduction& reduction, std::vector<Piece> pieces) {
    const auto start = [&](std::vector<Piece> all) {
      return counted<HostReduction>(lane, policy, combination_of(reduction), reduction.leaves,
                                    std::move(all));
    };
    if (!must_pack(lane, reduction, pieces)) return start(std::move(pieces));
    return packed_leaves(buffers_, lane, reduction, pieces,
                         [&](const Piece& all) { return start({all}); });
  }

  static std::unique_ptr<Operation> host_allreduce(const Lane& lane, const HostPolicy& policy,
                                                   const Reduction& reduction,
                                                   std::vector<Piece> pieces) {
    return counted<HostReduction>(lane, policy, combination_of(reduction), reduction.contributors,
                                  std::move(pieces));
  }

  using Offer = std::function<std::unique_ptr<Operation>(const std::byte* data)>;
  // Starts with `data`, or with a copy if the other ranks could not reach it.
  std::unique_ptr<Operation> offer(const Lane& lane, const HostPolicy& policy,
                                   const std::byte* data, std::size_t bytes, const Offer& start) {
    const HostMemory& host = lane.channel->host();
    if (bytes <= policy.flat_limit || host.is_reachable(data, bytes)) return start(data);
    lane.counters->bytes_packed.add(static_cast<std::int64_t>(bytes));
    return std::make_unique<PackedOperation>(
        buffers_, bytes,
        [&](std::byte* buffer) { copy_bytes(buffer, data, bytes, Stores::cached); }, start,
        [](const std::byte*) {});
  }

  std::unique_ptr<Operation> pull(const Lane& lane, const HostPolicy& policy, const std::byte* data,
                                  std::size_t bytes, std::vector<std::int64_t> numbers,
                                  HostPull::Plan plan) {
    const auto start = [&](const std::byte* offered) -> std::unique_ptr<Operation> {
      return counted<HostPull>(lane, policy, offered, bytes, std::move(numbers), std::move(plan));
    };
    return data == nullptr ? start(nullptr) : offer(lane, policy, data, bytes, start);
  }

  static std::vector<HostPull::Transfer> rows_to_take(const HostPull& pull, std::size_t row_bytes,
                                                      const AllocateRows& allocate) {
    std::vector<std::int64_t> received;
    for (int member = 0; member < pull.size(); ++member) {
      received.push_back(pull.number_of(member, pull.rank()));
    }
    std::byte* target = allocate(received);
    std::vector<HostPull::Transfer> transfers;
    for (int member = 0; member < pull.size(); ++member) {
      std::int64_t before = 0;
      for (int other = 0; other < pull.rank(); ++other) before += pull.number_of(member, other);
      const auto rows = static_cast<std::size_t>(received[static_cast<std::size_t>(member)]);
      transfers.push_back(
          {member, static_cast<std::size_t>(before) * row_bytes, target, rows * row_bytes});
      target += rows * row_bytes;
    }
    return transfers;
  }

  const AlgorithmTable algorithms_;
  const HostPolicy policy_;
  BufferPool buffers_;
  const std::unique_ptr<Backend> ring_;
};

}  // namespace

std::optional<HostPolicy> policy_for(const AlgorithmTable& algorithms, const HostPolicy& policy,
                                     std::size_t bytes) {
  HostPolicy chosen = policy;
  switch (algorithms.choose(static_cast<std::int64_t>(std::min<std::size_t>(bytes, INT64_MAX)))) {
    case Algorithm::ring:
    case Algorithm::hierarchical:
    case Algorithm::doubling:
    case Algorithm::halving:
    case Algorithm::tree:
    case Algorithm::gathered:
    case Algorithm::pairwise: return std::nullopt;
    case Algorithm::flat: chosen.flat_limit = slot_bytes; break;
    case Algorithm::staged: chosen.staged_limit = SIZE_MAX; break;
    case Algorithm::direct: chosen.flat_limit = std::min(policy.flat_limit, bytes - 1); break;
  }
  return chosen;
}

std::unique_ptr<Backend> make_onehost_backend(const AlgorithmTable& algorithms,
                                              const HostPolicy& policy, std::size_t kept_buffers) {
  return std::make_unique<OnehostBackend>(algorithms, policy, kept_buffers);
}

}  // namespace rueda
