// Tags: what distinguishes the messages of operations, and how they map to MPI's tags.
#include "mpi/tags.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "coordinator/process_sets.h"
#include "transport/tag.h"

namespace rueda::test::tags_test {

TEST_CASE("no operation has the tag of another, however many a group has had") {
  constexpr std::uint64_t operations = std::uint64_t{1} << 20;
  // The process sets of the second pair use the same slot, one after the other.
  const auto [first, second] =
      GENERATE(std::pair(0, 1), std::pair(first_formed, first_formed + process_set_limit));
  std::vector<Tag> tags;
  tags.reserve(2 * operations);
  for (std::uint64_t sequence = 0; sequence < operations; ++sequence) {
    tags.push_back(batch_tag(first, BatchOrder::negotiated, sequence));
    tags.push_back(batch_tag(second, BatchOrder::negotiated, sequence));
  }
  std::sort(tags.begin(), tags.end());
  CHECK(std::adjacent_find(tags.begin(), tags.end()) == tags.end());
}

TEST_CASE("each field of a tag distinguishes") {
  const Tag tag{.group = 3, .stream = 1, .sequence = 17, .part = 2};
  std::vector<Tag> others(4, tag);
  others[0].group = messages_group;
  others[1].stream = 2;
  others[2].sequence = std::uint64_t{17} | std::uint64_t{1} << 40;
  others[3].part = std::uint64_t{2} | std::uint64_t{1} << 33;
  for (const Tag& other : others) {
    CHECK(other != tag);
    CHECK(std::hash<Tag>()(other) != std::hash<Tag>()(tag));
    CHECK(describe(other) != describe(tag));
  }
  CHECK(describe(tag) == "group 3, stream 1, operation 17, part 2");
  CHECK(batch_tag(3, BatchOrder::replayed, 5) != batch_tag(3, BatchOrder::negotiated, 5));
  CHECK(message_tag(5) != batch_tag(0, BatchOrder::negotiated, 5));
}

TEST_CASE("MPI's tags are small, and distinct for what is under way at one time") {
  // More than any option allows in flight, and across a wraparound of MPI's tags.
  const std::uint64_t begin =
      GENERATE(std::uint64_t{0}, std::uint64_t{(1U << 15) - 100}, (std::uint64_t{1} << 50) - 3);
  constexpr std::uint64_t operations = 500;
  std::vector<Tag> tags;
  for (const int set : {0, 1, process_set_limit - 1, first_formed, first_formed + 1,
                        first_formed + 7 * process_set_limit + process_set_limit - 1}) {
    for (const auto order : {BatchOrder::negotiated, BatchOrder::replayed, BatchOrder::on_gpu}) {
      for (std::uint64_t sequence = begin; sequence < begin + operations; ++sequence) {
        Tag tag = batch_tag(set, order, sequence);
        for (tag.part = 1000; tag.part < 1000 + parts_under_way; ++tag.part) tags.push_back(tag);
      }
    }
  }
  for (std::uint64_t sequence = begin; sequence < begin + operations; ++sequence) {
    tags.push_back(message_tag(sequence));
  }
  tags.push_back({.group = trial_group});
  std::set<int> seen;
  for (const Tag& tag : tags) seen.insert(mpi::mpi_tag(tag));
  CHECK(seen.size() == tags.size());
  CHECK(*seen.begin() >= 0);
  CHECK(static_cast<std::uint64_t>(*seen.rbegin()) < mpi::tag_limit);
}

}  // namespace rueda::test::tags_test
