// Float32 as fewer bytes, and back.
//
// A codec is a pure function: the same values give the same bytes, and the same bytes the same
// values, on every CPU. So ranks that decode the same bytes get the same bits.
//
// A new codec is a class behind make_codec(). How other codecs would fit in:
//
//   5 bits   integers in blocks with a scale, like int8: the size depends on the count alone.
//   1 bit    signs and one or two magnitudes per run (Seide et al., "1-bit stochastic gradient
//            descent", Interspeech 2014): likewise. It needs error feedback in both directions,
//            which the residuals provide without encodes_own().
//   lossless (Huffman, ANS): has_fixed_size() is false and max_bytes() is the size of an uncoded
//            run. Runs and messages carry their sizes.
//   low rank (Vogels et al., "PowerSGD", NeurIPS 2019): not a codec of runs, since it needs the
//            whole matrix and two sums with an orthogonalisation between them. These sums are two
//            allreduces of the small factors P and Q instead of one of the gradient; each may have
//            a codec of its own. What is kept, the residual and Q, belongs to the caller, like
//            residuals. So it is a way to submit gradients
//            (python/rueda/torch/separate_gradients.py), and uses nothing else of this interface.
//
// What a codec keeps of a tensor between calls comes with its Piece (reduce/piece.h) and is applied
// around encode(), so that codecs themselves are stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "rueda/compression.h"

namespace rueda {

// Values that are encoded together: those of one tensor in one chunk.
struct CodecRun {
  std::int64_t count = 0;  // at most max_run
  std::int64_t first = 0;  // offset in the tensor
  int partials = 1;        // contributions that are summed up in the values
  std::uint64_t seed = 0;  // for random choices
  bool is_sum = false;     // even of a single contribution: no new random choice
};

inline constexpr std::int64_t max_run = 1 << 16;

enum class Decoded : std::uint8_t {
  finite,
  not_finite,  // a NaN, an infinity or a value that the codec cannot hold was encoded
  malformed,   // not the output of a codec
};

class Codec {
 public:
  virtual ~Codec() = default;

  // The room that encode() needs. It uses all of it if has_fixed_size().
  [[nodiscard]] virtual std::size_t max_bytes(const CodecRun& run) const = 0;
  [[nodiscard]] virtual bool has_fixed_size() const { return true; }

  // The largest magnitude that the codec can hold; it treats larger ones as not finite.
  [[nodiscard]] virtual float limit() const { return std::numeric_limits<float>::max(); }

  // Whether an owner's own contribution must be encoded, too, before it is added to the others':
  // only then is a sum of sparse contributions sparse.
  [[nodiscard]] virtual bool encodes_own() const { return false; }

  // Returns the number of bytes written. decode() reports values that are not finite.
  virtual std::size_t encode(std::byte* target, const float* values, const CodecRun& run) const = 0;

  // target[i] = the value of element i. `size`: what encode() returned for this run. Values that
  // are not finite become NaN, and perhaps their neighbours, too.
  [[nodiscard]] virtual Decoded decode(float* target, const std::byte* source, std::size_t size,
                                       const CodecRun& run) const = 0;
  // target[i] += the value of element i, rounded once.
  [[nodiscard]] virtual Decoded decode_add(float* target, const std::byte* source, std::size_t size,
                                           const CodecRun& run) const = 0;
};

struct KernelTable;

// Requires a codec other than none, with a fraction that is valid for it.
[[nodiscard]] std::unique_ptr<const Codec> make_codec(const Compression& compression);
// With the kernels of one instruction set (reduce/instruction_set.h).
[[nodiscard]] std::unique_ptr<const Codec> make_codec(const Compression& compression,
                                                      const KernelTable& kernels);

// Whether no magnitude is above `limit` and there is no NaN.
[[nodiscard]] bool are_within(const float* values, std::int64_t count, float limit);

// residual[i] = (values[i] - decoded[i]) * factor: what error feedback adds to the next values.
void keep_residual(float* residual, const float* values, const float* decoded, std::int64_t count,
                   float factor = 1.0F);
// target[i] = momentum * velocity[i] + values[i].
void add_momentum(float* target, const float* velocity, const float* values, float momentum,
                  std::int64_t count);
// velocity[i] = 0 where element i travels.
void mask_momentum(float* velocity, const float* decoded, std::int64_t count);
// target[i] = values[i] + residual[i].
void add_residual(float* target, const float* values, const float* residual, std::int64_t count);

}  // namespace rueda
