// Distinguishes the messages between two ranks by what they belong to.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace rueda {

// Wide, so that a world never uses a tag twice. A link whose own tags are narrower maps them
// itself.
struct Tag {
  std::int32_t group = 0;      // a process set's number, or one of those below
  std::uint32_t stream = 0;    // one of the orders in which the group numbers its operations
  std::uint64_t sequence = 0;  // the operation's number within its stream
  std::uint64_t part = 0;      // of the operation, for messages that may overtake each other

  auto operator<=>(const Tag&) const = default;
};
// Has no padding: tags travel in their memory layout.
static_assert(sizeof(Tag) == 24);

// Groups that are not process sets.
inline constexpr std::int32_t messages_group = -1;  // between two ranks
inline constexpr std::int32_t trial_group = -2;     // measures links before there are sets

// "group 3, stream 0, operation 17, part 0"
[[nodiscard]] std::string describe(const Tag& tag);

}  // namespace rueda

template <>
struct std::hash<rueda::Tag> {
  std::size_t operator()(const rueda::Tag& tag) const noexcept {
    // Neighbours differ in the low bits of one field.
    const std::uint64_t place =
        (std::uint64_t{static_cast<std::uint32_t>(tag.group)} << 32) | tag.stream;
    std::uint64_t mixed = place * 0x9E3779B97F4A7C15U;
    mixed = (mixed ^ tag.sequence) * 0xC2B2AE3D27D4EB4FU;
    mixed = (mixed ^ tag.part) * 0x9E3779B97F4A7C15U;
    return static_cast<std::size_t>(mixed ^ (mixed >> 32));
  }
};
