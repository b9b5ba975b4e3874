#include <algorithm>
#include <array>
#include <bit>
#include <cassert>

#include "reduce/cast.h"
#include "reduce/codecs.h"
#include "reduce/element.h"
#include "reduce/reduce.h"

namespace rueda {

namespace {

// Pieces that stay in the first-level cache between two passes.
constexpr std::int64_t piece = 2048;

// Whether no number has all exponent bits set. Branch-free, so that it is vectorised.
bool are_finite(const std::byte* source, std::int64_t count, std::uint16_t exponent) {
  std::uint16_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = read<std::uint16_t>(source + 2 * i);
    found = static_cast<std::uint16_t>(found | ((bits & exponent) == exponent ? 1 : 0));
  }
  return found == 0;
}

class FloatCodec final : public Codec {
 public:
  FloatCodec(DataType wire, const KernelTable& kernels) : wire_(wire), kernels_(kernels) {
    assert(size_of(wire) == 2);
  }

  [[nodiscard]] std::size_t max_bytes(const CodecRun& run) const override {
    return static_cast<std::size_t>(run.count) * 2;
  }

  // A value halfway to the next number, which would be infinite, is rounded to infinity.
  [[nodiscard]] float limit() const override {
    return std::bit_cast<float>(wire_ == DataType::float16 ? 0x477fefff : 0x7f7f7fff);
  }

  std::size_t encode(std::byte* target, const float* values, const CodecRun& run) const override {
    kernels_.narrow(wire_, target, bytes_of(values), run.count, 1.0F);
    return max_bytes(run);
  }

  [[nodiscard]] Decoded decode(float* target, const std::byte* source, std::size_t size,
                               const CodecRun& run) const override {
    if (size != max_bytes(run)) return Decoded::malformed;
    kernels_.widen(wire_, bytes_of(target), source, run.count, 1.0F);
    return found(source, run);
  }

  [[nodiscard]] Decoded decode_add(float* target, const std::byte* source, std::size_t size,
                                   const CodecRun& run) const override {
    if (size != max_bytes(run)) return Decoded::malformed;
    alignas(64) std::array<float, piece> wide;
    for (std::int64_t at = 0; at < run.count; at += piece) {
      const std::int64_t count = std::min(piece, run.count - at);
      kernels_.widen(wire_, bytes_of(wide.data()), source + 2 * at, count, 1.0F);
      reduce(target + at, wide.data(), count, DataType::float32, ReduceOp::sum);
    }
    return found(source, run);
  }

 private:
  static const std::byte* bytes_of(const float* values) {
    return reinterpret_cast<const std::byte*>(values);
  }
  static std::byte* bytes_of(float* values) { return reinterpret_cast<std::byte*>(values); }

  [[nodiscard]] Decoded found(const std::byte* source, const CodecRun& run) const {
    const std::uint16_t exponent = wire_ == DataType::float16 ? 0x7c00 : 0x7f80;
    return are_finite(source, run.count, exponent) ? Decoded::finite : Decoded::not_finite;
  }

  DataType wire_;
  const KernelTable& kernels_;
};

}  // namespace

std::unique_ptr<const Codec> make_float_codec(DataType wire, const KernelTable& kernels) {
  return std::make_unique<FloatCodec>(wire, kernels);
}

}  // namespace rueda
