#include "reduce/codecs.h"
#include "reduce/kernels/block_format.h"

namespace rueda {

namespace {

// Dettmers et al., "8-bit optimizers via block-wise quantization", ICLR 2022, section 2: with one
// scale per block, an outlier does not reduce the precision of other blocks. The levels here are
// linear.
class BlockCodec final : public Codec {
 public:
  explicit BlockCodec(const KernelTable& kernels) : kernels_(kernels) {}

  [[nodiscard]] std::size_t max_bytes(const CodecRun& run) const override {
    const std::int64_t blocks = (run.count + block_elements - 1) / block_elements;
    return static_cast<std::size_t>(run.count) + static_cast<std::size_t>(blocks) * scale_bytes;
  }

  std::size_t encode(std::byte* target, const float* values, const CodecRun& run) const override {
    kernels_.quantize(target, values, run.count);
    return max_bytes(run);
  }

  [[nodiscard]] Decoded decode(float* target, const std::byte* source, std::size_t size,
                               const CodecRun& run) const override {
    if (size != max_bytes(run)) return Decoded::malformed;
    const bool is_finite = kernels_.dequantize(target, source, run.count);
    return is_finite ? Decoded::finite : Decoded::not_finite;
  }

  [[nodiscard]] Decoded decode_add(float* target, const std::byte* source, std::size_t size,
                                   const CodecRun& run) const override {
    if (size != max_bytes(run)) return Decoded::malformed;
    const bool is_finite = kernels_.add_dequantized(target, source, run.count);
    return is_finite ? Decoded::finite : Decoded::not_finite;
  }

 private:
  const KernelTable& kernels_;
};

}  // namespace

std::unique_ptr<const Codec> make_block_codec(const KernelTable& kernels) {
  return std::make_unique<BlockCodec>(kernels);
}

}  // namespace rueda
