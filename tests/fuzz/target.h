// What is fuzzed: everything that reads bytes which another process has sent. A target is a
// function of bytes that must not crash, hang, leak or take memory without bound, whatever they
// are.
//
// Two programs have all targets: fuzz_replay (replay.cpp) runs seeds and random changes of them, as
// a test; fuzz_explore (explore.cpp) is guided by coverage, with libFuzzer (`make fuzz`).
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace rueda::fuzz {

using Bytes = std::vector<std::byte>;

struct Target {
  std::string_view name;
  void (*run)(std::span<const std::byte> bytes);
  // Inputs that reach far, made by the library's own encoders: what changes are made of.
  std::vector<Bytes> (*seeds)();
};

// Each in a file of its own.
extern const Target frames;      // of a socket
extern const Target hello;       // what a connection begins with, read by who is called
extern const Target stream_in;   // a TCP stream: its opening, chunks
extern const Target stream_out;  // the other side: challenge, confirmation, receipts
extern const Target chunks;      // messages in chunks over many streams
extern const Target negotiation;
extern const Target rounds;          // the agreement between hosts
extern const Target survivors;       // the agreement after a loss
extern const Target messages;        // from one rank to another
extern const Target table_requests;  // and answers
extern const Target rendezvous;
extern const Target texts;  // that ranks exchange when a world is formed, and errors
extern const Target codecs;

inline constexpr const Target* all_targets[] = {
    &frames,    &hello,    &stream_in,      &stream_out, &chunks, &negotiation, &rounds,
    &survivors, &messages, &table_requests, &rendezvous, &texts,  &codecs};

// Null where there is none of that name.
[[nodiscard]] inline const Target* find_target(std::string_view name) {
  for (const Target* target : all_targets) {
    if (target->name == name) return target;
  }
  return nullptr;
}

// Ends the process as a sanitizer would: a property of the target does not hold.
inline void require(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace rueda::fuzz
