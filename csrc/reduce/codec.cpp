#include "reduce/codec.h"

#include <bit>
#include <cassert>

#include "reduce/codecs.h"
#include "reduce/instruction_set.h"

namespace rueda {

std::unique_ptr<const Codec> make_codec(const Compression& compression) {
  return make_codec(compression, chosen_kernels());
}

std::unique_ptr<const Codec> make_codec(const Compression& compression,
                                        const KernelTable& kernels) {
  switch (compression.codec) {
    case CodecKind::float16: return make_float_codec(DataType::float16, kernels);
    case CodecKind::bfloat16: return make_float_codec(DataType::bfloat16, kernels);
    case CodecKind::int8: return make_block_codec(kernels);
    case CodecKind::top_k:
    case CodecKind::random_k: return make_sparse_codec(compression.codec, compression.fraction);
    case CodecKind::none: break;
  }
  assert(false);
  return nullptr;
}

// Floats without their signs are ordered like their bits. Branch-free, so that it is vectorised.
bool are_within(const float* values, std::int64_t count, float limit) {
  const auto most = std::bit_cast<std::int32_t>(limit);
  std::int32_t above = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    above |= (std::bit_cast<std::int32_t>(values[i]) & 0x7fffffff) > most ? 1 : 0;
  }
  return above == 0;
}

void keep_residual(float* residual, const float* values, const float* decoded, std::int64_t count,
                   float factor) {
  for (std::int64_t i = 0; i < count; ++i) residual[i] = (values[i] - decoded[i]) * factor;
}

void add_momentum(float* target, const float* velocity, const float* values, float momentum,
                  std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) target[i] = momentum * velocity[i] + values[i];
}

void mask_momentum(float* velocity, const float* decoded, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) velocity[i] = decoded[i] == 0.0F ? velocity[i] : 0.0F;
}

void add_residual(float* target, const float* values, const float* residual, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) target[i] = values[i] + residual[i];
}

}  // namespace rueda
