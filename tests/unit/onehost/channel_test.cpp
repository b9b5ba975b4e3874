// What members of a channel show each other does not overlap, either between members or between one
// collective and the next.
#include "onehost/channel.h"

#include <catch2/catch.hpp>
#include <vector>

#include "ranks/open_channels.h"

namespace rueda::test::channel_test {

namespace {

struct Range {
  const std::byte* begin;
  std::size_t bytes;
};

bool overlap(const Range& left, const Range& right) {
  return left.begin < right.begin + right.bytes && right.begin < left.begin + left.bytes;
}

}  // namespace

TEST_CASE("lines, slots and tables of two collectives in a row lie apart, within what they take") {
  const std::size_t slot = GENERATE(as<std::size_t>{}, 0, 1, 64, 1000, slot_bytes);
  const auto channels = open_channels(2, slot);
  ChannelMemory& memory = channels[0]->memory();
  for (int member = 0; member < 2; ++member) {
    std::vector<Range> all;
    for (const std::uint64_t sequence : {7U, 8U}) {
      memory.turn_to(sequence);
      all.push_back({memory.line_of(member), line_bytes});
      all.push_back({memory.slot_of(member), slot});
      all.push_back({memory.table_of(member), ChannelMemory::table_entries * sizeof(Exposure)});
    }
    const auto* const begin = reinterpret_cast<const std::byte*>(memory.find(member));
    for (std::size_t i = 0; i < all.size(); ++i) {
      CHECK(all[i].begin >= begin);
      CHECK(all[i].begin + all[i].bytes <= begin + ChannelMemory::bytes_for(slot));
      for (std::size_t j = 0; j < i; ++j) CHECK_FALSE(overlap(all[i], all[j]));
    }
    // The collective after the next reuses the memory of the first.
    memory.turn_to(9);
    CHECK(memory.slot_of(member) == all[1].begin);
  }
}

TEST_CASE("what a rank has written before it arrives the others read after all have arrived") {
  const int size = GENERATE(1, 2, 5);
  const auto channels = open_channels(size, 64);
  for (int round = 0; round < 5; ++round) {
    for (const auto& channel : channels) {
      channel->begin();
      const auto value = static_cast<std::byte>(10 * round + channel->rank());
      REQUIRE(channel->memory().populate_slot(64));
      REQUIRE(channel->memory().populate_table());
      *channel->memory().line() = *channel->memory().slot() = value;
      *channel->memory().table() = value;
    }
    for (const auto& channel : channels) {
      if (channel->rank() + 1 < size) CHECK_FALSE(channels.back()->all_arrived());
      CHECK(channel->not_arrived().size() == static_cast<std::size_t>(size - channel->rank()));
      channel->arrive();
    }
    for (const auto& channel : channels) {
      REQUIRE(channel->all_arrived());
      for (int member = 0; member < size; ++member) {
        const auto expected = static_cast<std::byte>(10 * round + member);
        CHECK(*channel->memory().line_of(member) == expected);
        CHECK(*channel->memory().slot_of(member) == expected);
        CHECK(*channel->memory().table_of(member) == expected);
      }
      channel->finish();
    }
    CHECK(channels.front()->all_finished());
  }
}

}  // namespace rueda::test::channel_test
