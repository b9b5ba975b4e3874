// Chunks of messages in any order, by whatever stream, and receives that come before or after.
#include <cstring>

#include "fuzz/script.h"
#include "tcp/incoming_messages.h"

namespace rueda::fuzz::chunks_target {

namespace {

enum class Step { begins, writes, ends, receives };
constexpr int steps = 4;

// A chunk whose header has been read.
struct Arriving {
  IncomingMessages::MessagePointer message;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

void write(const Arriving& chunk) {
  std::vector<MutableBytes> parts;
  IncomingMessages::place(*chunk.message, chunk.offset, chunk.bytes, parts);
  std::size_t placed = 0;
  for (const MutableBytes& part : parts) {
    placed += part.size();
    std::fill(part.begin(), part.end(), std::byte{1});
  }
  require(placed == 0 || placed == chunk.bytes);
}

void run(std::span<const std::byte> bytes) {
  Script script(bytes);
  IncomingMessages messages(1);
  std::vector<Bytes> targets;
  targets.reserve(bytes.size() + 1);
  std::vector<Arriving> arriving;
  std::vector<Ticket> tickets;
  while (!script.is_over()) {
    switch (static_cast<Step>(script.below(steps))) {
      case Step::begins: {
        ChunkHeader header;
        const auto block = script.block();
        if (!block.empty()) {
          std::memcpy(&header, block.data(), std::min(block.size(), sizeof header));
        }
        auto message = messages.begin(header);
        if (message) arriving.push_back({*message, header.offset, header.bytes});
        break;
      }
      case Step::writes:
        if (!arriving.empty()) write(arriving[script.byte() % arriving.size()]);
        break;
      case Step::ends:
        if (!arriving.empty()) {
          const auto chosen = arriving.begin() + script.byte() % static_cast<int>(arriving.size());
          const Arriving chunk = *chosen;
          write(chunk);
          static_cast<void>(messages.add(chunk.message, chunk.offset, chunk.bytes));
          arriving.erase(chosen);
        }
        break;
      case Step::receives: {
        const Tag tag{.sequence = std::uint64_t{script.byte()} % 4};
        targets.emplace_back(script.byte() * std::size_t{2});
        const MutableBytes target(targets.back());
        tickets.push_back(messages.recv(tag, {&target, 1}));
        break;
      }
    }
  }
  messages.fail(Status(ErrorCode::transport, "over"));
  for (const Ticket& ticket : tickets) require(ticket->done);
}

std::vector<Bytes> seeds() {
  const auto begins = [](ScriptWriter& writer, const ChunkHeader& header) {
    writer.byte(0).block(std::as_bytes(std::span(&header, 1)));
  };
  ScriptWriter in_order;
  in_order.byte(3).byte(1).byte(50);
  begins(in_order, {1, 0, 100, 0, {.sequence = 1}, 60, 0});
  begins(in_order, {1, 0, 100, 60, {.sequence = 1}, 40, 0});
  in_order.byte(2).byte(0).byte(2).byte(0);
  ScriptWriter unexpected;
  begins(unexpected, {2, 1, 100, 0, {.sequence = 1}, 100, 0});
  unexpected.byte(2).byte(0);
  begins(unexpected, {1, 0, 20, 0, {.sequence = 1}, 20, 0});
  unexpected.byte(1).byte(0).byte(3).byte(1).byte(10).byte(2).byte(0).byte(3).byte(1).byte(50);
  ScriptWriter twice;
  for (int i = 0; i < 2; ++i) {
    begins(twice, {7, 0, 8, 0, {.sequence = 2}, 8, 0});
    twice.byte(2).byte(0);
  }
  begins(twice, {8, 0, 0, 0, {.sequence = 3}, 0, 0});
  ScriptWriter large;
  begins(large, {9, 0, max_message_bytes, 0, {.sequence = 2}, 8, 0});
  large.byte(2).byte(0);
  return {in_order.take(), unexpected.take(), twice.take(), large.take()};
}

}  // namespace
}  // namespace rueda::fuzz::chunks_target

namespace rueda::fuzz {

const Target chunks{"chunks", chunks_target::run, chunks_target::seeds};

}  // namespace rueda::fuzz
