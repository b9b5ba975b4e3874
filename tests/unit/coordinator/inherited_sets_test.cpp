// Process sets in a world that follows another.
#include "coordinator/inherited_sets.h"

#include <catch2/catch.hpp>

namespace rueda::test::inherited_sets_test {

namespace {

using Known = std::vector<std::optional<KnownSets>>;

// The sets known to each of `size` ranks after these were added.
Known known_after(int size, const std::vector<std::vector<int>>& sets) {
  Known known;
  for (int rank = 0; rank < size; ++rank) {
    ProcessSets own(rank, size);
    for (const auto& ranks : sets) REQUIRE(own.add(ranks));
    known.emplace_back(own.known());
  }
  return known;
}

void lose(Known& known, int rank) {
  known.erase(known.begin() + rank);
}

std::vector<int> ranks_of(const ProcessSets& sets, int id) {
  const auto members = sets.find(id);
  REQUIRE(members);
  return members->ranks;
}

}  // namespace

TEST_CASE("sets go on with the members that are left, under their numbers") {
  Known known = known_after(4, {{0, 2}, {1}, {0, 1, 3}, {2, 3}});
  lose(known, 1);
  for (int rank = 0; rank < 3; ++rank) {
    ProcessSets sets(rank, known);
    CHECK(sets.ids() == std::vector<int>{0, 1, 2, 3, 4});
    CHECK(ranks_of(sets, 0) == std::vector<int>{0, 1, 2});
    CHECK(ranks_of(sets, 1) == std::vector<int>{0, 1});
    CHECK(ranks_of(sets, 2).empty());
    CHECK(ranks_of(sets, 3) == std::vector<int>{0, 2});
    CHECK(ranks_of(sets, 4) == std::vector<int>{1, 2});
    CHECK(sets.find(3)->rank == (rank == 0 ? 0 : rank == 2 ? 1 : -1));
    CHECK(sets.find(2)->rank == -1);
    CHECK(sets.find(2)->description() == "all of whose members are lost");
    CHECK(sets.find(4)->definition == definition_of({2, 3}));
    const auto added = sets.add({0});
    REQUIRE(added);
    CHECK(added.value()->id == 5);
  }
}

TEST_CASE("a newcomer is no member, and numbers the next set as all others do") {
  Known known = known_after(2, {{0, 1}, {1}});
  known.emplace_back();  // a newcomer
  for (int rank = 0; rank < 3; ++rank) {
    ProcessSets sets(rank, known);
    CHECK(ranks_of(sets, 1) == std::vector<int>{0, 1});
    CHECK(ranks_of(sets, 2) == std::vector<int>{1});
    const auto added = sets.add({0, 2});
    REQUIRE(added);
    CHECK(added.value()->id == 3);
  }
}

TEST_CASE("numbers of sets that were removed are not given again") {
  ProcessSets before(0, 1);
  REQUIRE(before.add({0}));
  REQUIRE(before.add({0}));
  REQUIRE(before.remove(2).ok());
  ProcessSets after(0, Known{before.known()});
  CHECK(after.add({0}).value()->id == 3);
}

TEST_CASE("a set that was being added when its world broke is gone, and all say so") {
  Known known = known_after(3, {{0, 1}});
  ProcessSets ahead(1, 3);
  REQUIRE(ahead.add({0, 1}));
  REQUIRE(ahead.add({1, 2}));
  known[1] = ahead.known();
  for (int rank = 0; rank < 3; ++rank) {
    ProcessSets sets(rank, known);
    CHECK(sets.find(1));
    CHECK_FALSE(sets.find(2));
    const std::string why = sets.missing(2).message();
    CHECK(why.find("there is no process set 2: it was being added or removed") == 0);
    CHECK(why.find("rank 1 had it and ranks 0 and 2 had not: add it again") != std::string::npos);
    // The ranks of the next world know it, too.
    Known later = known;
    for (auto& each : later) each = sets.known();
    CHECK(ProcessSets(rank, later).missing(2).message() == why);
    CHECK(sets.add({1, 2}).value()->id == 3);
  }
}

TEST_CASE("what is handed over does not change any more") {
  ProcessSets sets(0, 2);
  REQUIRE(sets.add({0, 1}));
  const KnownSets known = sets.hand_over();
  CHECK(known.sets.size() == 1);
  CHECK(sets.add({0}).status().code() == ErrorCode::peer_lost);
  CHECK(sets.remove(1).code() == ErrorCode::peer_lost);
  CHECK(sets.hand_over().sets.size() == 1);
  CHECK(sets.find(1));
}

TEST_CASE("sets that are offered to another world change on, as on ranks that have not offered") {
  ProcessSets sets(0, 2);
  bool was_offered = true;
  REQUIRE(sets.add({0, 1}, &was_offered));
  CHECK_FALSE(was_offered);
  const KnownSets known = sets.offer();
  CHECK(known.sets.size() == 1);
  CHECK(sets.add({0}, &was_offered).value()->id == 2);
  CHECK(was_offered);
  was_offered = false;
  CHECK(sets.remove(1, &was_offered).ok());
  CHECK(was_offered);
  CHECK(sets.ids() == std::vector<int>{0, 2});
  SECTION("the world goes on") {
    sets.take_back();
    CHECK(sets.add({0}, &was_offered).value()->id == 3);
    CHECK_FALSE(was_offered);
  }
  SECTION("the world breaks meanwhile") {
    (void)sets.hand_over();
    sets.take_back();
    CHECK(sets.add({0}).status().code() == ErrorCode::peer_lost);
  }
}

TEST_CASE("sets that only their members know end with their world") {
  ProcessSets sets(0, 2);
  REQUIRE(sets.form(first_formed, {0, 1}));
  CHECK(sets.known().sets.empty());
}

TEST_CASE("what ranks tell of their sets is read as it was written, and nothing else is") {
  for (const auto& known :
       {known_after(3, {})[0], known_after(3, {{0, 1}, {2}})[1], std::optional<KnownSets>()}) {
    std::vector<std::byte> bytes = encode_known_sets(known);
    const auto read = decode_known_sets(bytes);
    REQUIRE(read);
    CHECK(read.value().has_value() == known.has_value());
    CHECK(encode_known_sets(read.value()) == bytes);
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      CHECK_FALSE(decode_known_sets(std::span(bytes).first(length)));
    }
    bytes.push_back(std::byte{0});
    CHECK_FALSE(decode_known_sets(bytes));
  }
  KnownSets wrong;
  wrong.next_id = 3;
  const auto refuses = [&](std::vector<KnownSets::Known> sets) {
    wrong.sets = std::move(sets);
    return !decode_known_sets(encode_known_sets(wrong));
  };
  CHECK_FALSE(refuses({{1, true, 7}, {2, false, 8}}));
  CHECK(refuses({{0, true, 7}}));
  CHECK(refuses({{3, true, 7}}));
  CHECK(refuses({{2, true, 7}, {1, true, 8}}));
  CHECK(refuses({{1, true, 7}, {1, true, 7}}));
  wrong.next_id = 1000;
  std::vector<KnownSets::Known> many;
  for (int id = 1; id <= process_set_limit + 1; ++id) many.push_back({id, true, 0});
  CHECK(refuses(many));
}

}  // namespace rueda::test::inherited_sets_test
