#include "backend/compressed_faults.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/ring_operation.h"
#include "core/strings.h"

namespace rueda {

namespace {

constexpr std::byte none{0};

std::byte bit_of(int rank) {
  return std::byte{1} << (rank % 8);
}

class CompressedOperation final : public Operation {
 public:
  CompressedOperation(std::shared_ptr<const CompressedFaults> faults, CodecKind codec,
                      std::vector<Sequence::Step> steps)
      : faults_(std::move(faults)), codec_(codec), steps_(std::move(steps)) {}

  bool advance() override { return steps_.advance(); }
  [[nodiscard]] bool done() const override { return steps_.done(); }
  [[nodiscard]] const Status& status() const override { return steps_.status(); }
  [[nodiscard]] std::vector<int> awaited() const override { return steps_.awaited(); }
  [[nodiscard]] Status status_of_piece(std::size_t piece) const override {
    return faults_->status_of(piece, codec_);
  }

 private:
  const std::shared_ptr<const CompressedFaults> faults_;
  const CodecKind codec_;
  Sequence steps_;
};

}  // namespace

CompressedFaults::CompressedFaults(std::size_t tensors, const Lane& lane)
    : lane_(lane), in_result_(tensors, none), contributors_(tensors) {}

std::size_t CompressedFaults::bytes_of_ranks() const {
  return (static_cast<std::size_t>(lane_.size()) + 7) / 8;
}

void CompressedFaults::found_in_contribution(std::size_t tensor, int rank) {
  Ranks& ranks = contributors_[tensor];
  ranks.resize(bytes_of_ranks());
  ranks[static_cast<std::size_t>(rank) / 8] |= bit_of(rank);
}

std::unique_ptr<Operation> CompressedFaults::exchange() {
  const std::size_t width = bytes_of_ranks();
  std::vector<std::byte> own;
  for (std::size_t tensor = 0; tensor < in_result_.size(); ++tensor) {
    if (in_result_[tensor] == none) continue;
    own.resize(own.size() + width);
    const Ranks& ranks = contributors_[tensor];
    std::copy(ranks.begin(), ranks.end(), own.end() - static_cast<std::ptrdiff_t>(width));
  }
  if (own.empty()) return nullptr;
  const auto ranks = static_cast<std::size_t>(lane_.size());
  table_.assign(own.size() * ranks, none);
  std::copy(own.begin(), own.end(),
            table_.begin() + static_cast<std::ptrdiff_t>(own.size()) * lane_.rank);
  if (ranks == 1) return nullptr;
  std::vector<std::int64_t> lengths(ranks, static_cast<std::int64_t>(own.size()));
  return std::make_unique<RingOperation>(
      lane_, RingPlan::allgather(lane_.rank, std::move(lengths), lane_.chunk_bytes), table_.data(),
      1, nullptr);
}

Status CompressedFaults::status_of(std::size_t tensor, CodecKind codec) const {
  if (in_result_[tensor] == none) return {};
  const auto own = in_result_.begin() + static_cast<std::ptrdiff_t>(tensor);
  const auto row = static_cast<std::size_t>(
      std::count_if(in_result_.begin(), own, [](std::byte found) { return found != none; }));
  const std::size_t bytes = table_.size() / static_cast<std::size_t>(lane_.size());
  std::vector<int> ranks;
  for (int rank = 0; rank < lane_.size(); ++rank) {
    const std::size_t place = row * bytes_of_ranks() + static_cast<std::size_t>(rank) / 8;
    bool is_found = false;
    for (std::size_t at = place; at < table_.size(); at += bytes) {
      is_found = is_found || (table_[at] & bit_of(rank)) != none;
    }
    if (is_found) ranks.push_back(lane_.world_rank(rank));
  }
  std::sort(ranks.begin(), ranks.end());
  const std::string where = ranks.empty()
                                ? "in the sum over all ranks, but in no rank's contribution"
                                : str("on ", describe_ranks(ranks));
  return {ErrorCode::invalid_argument,
          str("the compression ", name_of(codec),
              " found a NaN, an infinity or a number beyond its range ", where),
          ranks.size() == 1 ? ranks.front() : -1,
          {.reason = ErrorReason::not_finite}};
}

std::unique_ptr<Operation> compressed_operation(const std::shared_ptr<CompressedFaults>& faults,
                                                CodecKind codec,
                                                std::vector<Sequence::Step> steps) {
  steps.emplace_back([faults] { return faults->exchange(); });
  return std::make_unique<CompressedOperation>(faults, codec, std::move(steps));
}

}  // namespace rueda
