#include "backend/compressed_tensors.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "reduce/cast.h"
#include "reduce/element.h"
#include "reduce/reduce.h"

namespace rueda {

namespace {

// Precedes each run of a codec whose runs do not contain their size.
using RunSize = std::uint32_t;

}  // namespace

CompressedTensors::CompressedTensors(const Reduction& reduction, std::vector<Piece> pieces,
                                     const Lane& lane, std::int64_t chunk, ReportFault report)
    : reduction_(reduction),
      pieces_(std::move(pieces)),
      layout_(pieces_, lane.size(), chunk),
      codec_(make_codec(reduction.compression)),
      rank_(lane.rank),
      contributors_(std::max(1, reduction.contributors)),
      report_(std::move(report)) {
  scratch_.resize(static_cast<std::size_t>(layout_.longest()));
  decoded_.resize(static_cast<std::size_t>(layout_.longest()));
}

CodecRun CompressedTensors::described(const PieceRun& run, int partials) const {
  const Piece& piece = pieces_[run.piece];
  return {run.count, piece.first + run.first, partials, piece.kept.seed};
}

std::size_t CompressedTensors::max_bytes(const CompressedChunk& chunk, int partials) const {
  std::size_t bytes = 0;
  for (const PieceRun& run : chunk.runs) {
    bytes += codec_->max_bytes(described(run, partials));
    if (!codec_->has_fixed_size()) bytes += sizeof(RunSize);
  }
  return bytes;
}

std::byte* CompressedTensors::element(std::byte* data, std::int64_t index) const {
  return data + static_cast<std::size_t>(index) * size_of(reduction_.dtype);
}

// This rank's values as they are encoded: in place, or in `scratch`. Values that are not finite
// leave the velocity unchanged, since it would never become finite again.
const float* CompressedTensors::gather(const PieceRun& run, float* scratch) const {
  const Piece& piece = pieces_[run.piece];
  if (piece.input == nullptr) {
    std::fill_n(scratch, run.count, 0.0F);
    return scratch;
  }
  const std::byte* const input = element(const_cast<std::byte*>(piece.input), run.first);
  const bool is_plain = reduction_.dtype == DataType::float32 && reduction_.prescale == 1.0;
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(input) % alignof(float) == 0;
  const float* values = reinterpret_cast<const float*>(input);
  if (!is_plain || !is_aligned) {
    auto* const target = reinterpret_cast<std::byte*>(scratch);
    cast(target, DataType::float32, input, reduction_.dtype, run.count, reduction_.prescale);
    values = scratch;
  }
  const KeptByCodec kept = piece.kept.from(run.first);
  if (kept.velocity != nullptr) {
    add_momentum(scratch, kept.velocity, values, kept.momentum, run.count);
    values = scratch;
    const bool is_finite = are_within(values, run.count, std::numeric_limits<float>::max());
    if (is_finite) std::copy_n(values, run.count, kept.velocity);
  }
  if (kept.residual == nullptr) return values;
  add_residual(scratch, values, kept.residual, run.count);
  return scratch;
}

std::size_t CompressedTensors::encode_run(std::byte* target, const float* values,
                                          const CodecRun& run) const {
  if (codec_->has_fixed_size()) return codec_->encode(target, values, run);
  const std::size_t bytes = codec_->encode(target + sizeof(RunSize), values, run);
  write(target, static_cast<RunSize>(bytes));
  return sizeof(RunSize) + bytes;
}

ConstBytes CompressedTensors::without_size(const std::byte* encoded, std::size_t bytes) const {
  const std::size_t head = codec_->has_fixed_size() ? 0 : sizeof(RunSize);
  return {encoded + head, bytes - head};
}

// Null if a value was not finite.
const float* CompressedTensors::decoded(const PieceRun& run, ConstBytes encoded, int partials) {
  float* const target = decoded_.data() + run.in_chunk;
  const Decoded found =
      codec_->decode(target, encoded.data(), encoded.size(), described(run, partials));
  return found == Decoded::finite ? target : nullptr;
}

// Values that are not finite leave the residual unchanged, here and below.
std::size_t CompressedTensors::encode(const CompressedChunk& chunk, std::byte* target) {
  std::size_t bytes = 0;
  for (const PieceRun& run : chunk.runs) {
    const float* const values = gather(run, scratch_.data() + run.in_chunk);
    std::byte* const encoded = target + bytes;
    const std::size_t written = encode_run(encoded, values, described(run, 1));
    bytes += written;
    const Piece& piece = pieces_[run.piece];
    const KeptByCodec kept = piece.kept.from(run.first);
    if (kept.residual == nullptr || piece.input == nullptr) continue;
    const float* const sent = decoded(run, without_size(encoded, written), 1);
    if (sent == nullptr) continue;
    keep_residual(kept.residual, values, sent, run.count);
    if (kept.velocity != nullptr) mask_momentum(kept.velocity, sent, run.count);
  }
  return bytes;
}

void CompressedTensors::copy_own(const CompressedChunk& chunk, float* target) {
  for (const PieceRun& run : chunk.runs) {
    float* const to = target + run.in_chunk;
    const float* const values = gather(run, to);
    const auto bytes = static_cast<std::size_t>(run.count) * sizeof(float);
    if (values != to) std::memcpy(to, values, bytes);
    if (are_within(to, run.count, codec_->limit())) continue;
    report_(run.piece, rank_);
    // The sum may be back within the limit; another owner would not have received the value.
    to[0] = std::numeric_limits<float>::quiet_NaN();
  }
}

// Calls visit(run, its bytes, its CodecRun) for each run of a chunk. False if a call returns false
// or the bytes do not match the runs.
template <class Visit>
bool CompressedTensors::for_each_run(const CompressedChunk& chunk, ConstBytes source, int partials,
                                     const Visit& visit) const {
  for (const PieceRun& run : chunk.runs) {
    const CodecRun described = this->described(run, partials);
    std::size_t bytes = codec_->max_bytes(described);
    if (!codec_->has_fixed_size()) {
      if (source.size() < sizeof(RunSize)) return false;
      const auto told = read<RunSize>(source.data());
      if (told > bytes) return false;
      bytes = told;
      source = source.subspan(sizeof(RunSize));
    }
    if (bytes > source.size() || !visit(run, source.first(bytes), described)) return false;
    source = source.subspan(bytes);
  }
  return source.empty();
}

bool CompressedTensors::add_to_sum(const CompressedChunk& chunk, int rank, ConstBytes source,
                                   float* sum) const {
  return for_each_run(
      chunk, source, 1, [&](const PieceRun& run, ConstBytes bytes, const CodecRun& described) {
        float* const to = sum + run.in_chunk;
        const Decoded found = rank == 0
                                  ? codec_->decode(to, bytes.data(), bytes.size(), described)
                                  : codec_->decode_add(to, bytes.data(), bytes.size(), described);
        if (found == Decoded::not_finite) report_(run.piece, rank);
        return found != Decoded::malformed;
      });
}

std::size_t CompressedTensors::encode_result(const CompressedChunk& chunk, float* sum,
                                             std::byte* target) {
  if (reduction_.op == ReduceOp::average) {
    divide(sum, chunk.count, DataType::float32, reduction_.divisor);
  }
  scale(sum, chunk.count, DataType::float32, reduction_.postscale);
  const bool is_average = reduction_.op == ReduceOp::average;
  const double factor = (is_average ? 1.0 / reduction_.divisor : 1.0) * reduction_.postscale;
  std::size_t bytes = 0;
  for (const PieceRun& run : chunk.runs) {
    std::byte* const encoded = target + bytes;
    const float* const values = sum + run.in_chunk;
    CodecRun described = this->described(run, contributors_);
    described.is_sum = true;
    const std::size_t written = encode_run(encoded, values, described);
    bytes += written;
    float* const residual = pieces_[run.piece].kept.from(run.first).residual;
    if (residual == nullptr || codec_->encodes_own()) continue;
    if (factor == 0) {
      std::fill_n(residual, run.count, 0.0F);
      continue;
    }
    const float* const taken = decoded(run, without_size(encoded, written), contributors_);
    if (taken == nullptr) continue;
    keep_residual(residual, values, taken, run.count, static_cast<float>(1 / factor));
  }
  return bytes;
}

bool CompressedTensors::take_result(const CompressedChunk& chunk, ConstBytes source) {
  return for_each_run(
      chunk, source, contributors_,
      [&](const PieceRun& run, ConstBytes bytes, const CodecRun& described) {
        std::byte* const output = pieces_[run.piece].output;
        std::byte* const target = output == nullptr ? nullptr : element(output, run.first);
        const bool in_place = target != nullptr && reduction_.dtype == DataType::float32 &&
                              reinterpret_cast<std::uintptr_t>(target) % alignof(float) == 0;
        float* const values =
            in_place ? reinterpret_cast<float*>(target) : decoded_.data() + run.in_chunk;
        const Decoded found = codec_->decode(values, bytes.data(), bytes.size(), described);
        if (found == Decoded::malformed) return false;
        if (found == Decoded::not_finite) report_(run.piece, all_ranks);
        if (target != nullptr && !in_place) {
          const auto* const from = reinterpret_cast<const std::byte*>(values);
          cast(target, reduction_.dtype, from, DataType::float32, run.count);
        }
        return true;
      });
}

}  // namespace rueda
