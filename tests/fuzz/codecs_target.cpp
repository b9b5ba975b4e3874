// Encoded runs, as a compressed allreduce takes them from others.
#include <cmath>
#include <memory>

#include "fuzz/script.h"
#include "reduce/codec.h"

namespace rueda::fuzz::codecs_target {

namespace {

constexpr std::array<CodecKind, 5> kinds{CodecKind::float16, CodecKind::bfloat16, CodecKind::int8,
                                         CodecKind::top_k, CodecKind::random_k};

std::unique_ptr<const Codec> codec_of(std::size_t kind) {
  Compression compression;
  compression.codec = kinds[kind];
  if (kind >= 3) compression.fraction = 0.1;
  return make_codec(compression);
}

CodecRun run_of(int count, int partials) {
  CodecRun run;
  run.count = count * 3;
  run.partials = 1 + partials % 4;
  return run;
}

void run(std::span<const std::byte> bytes) {
  static const std::array codecs{codec_of(0), codec_of(1), codec_of(2), codec_of(3), codec_of(4)};
  Script script(bytes);
  const Codec& codec = *codecs[script.byte() % codecs.size()];
  const int count = script.byte();
  const CodecRun run = run_of(count, script.byte());
  // Of exactly these sizes, so that a byte beyond is noticed.
  const Bytes encoded(script.rest().begin(), script.rest().end());
  std::vector<float> target(static_cast<std::size_t>(run.count));
  const Decoded found = codec.decode(target.data(), encoded.data(), encoded.size(), run);
  std::vector<float> sum(target.size(), 1.0F);
  require(codec.decode_add(sum.data(), encoded.data(), encoded.size(), run) == found);
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> seeds;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    for (const int count : {1, 20, 200}) {
      const auto codec = codec_of(kind);
      const CodecRun run = run_of(count, 0);
      std::vector<float> values(static_cast<std::size_t>(run.count));
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = std::sin(static_cast<float>(i));
      }
      Bytes encoded(codec->max_bytes(run));
      encoded.resize(codec->encode(encoded.data(), values.data(), run));
      seeds.push_back(
          ScriptWriter().byte(static_cast<int>(kind)).byte(count).byte(0).raw(encoded).take());
    }
  }
  return seeds;
}

}  // namespace
}  // namespace rueda::fuzz::codecs_target

namespace rueda::fuzz {

const Target codecs{"codecs", codecs_target::run, codecs_target::seeds};

}  // namespace rueda::fuzz
