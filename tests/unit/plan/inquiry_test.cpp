// Which ranks are asked where they are, how answers are reported, and how messages are encoded.
#include "plan/inquiry.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "core/strings.h"

namespace rueda::test::inquiry_test {
namespace {

std::string report_of(const Inquiry& inquiry, const std::vector<int>& missing, Time now = {}) {
  return inquiry.report(missing, now,
                        [](const std::vector<int>& ranks) { return describe_ranks(ranks); });
}

TEST_CASE("ranks at the same place are named together") {
  Inquiry inquiry;
  const std::vector<int> missing{1, 2, 5, 6};
  REQUIRE(inquiry.begin(missing, Time{}) == Time{} + Inquiry::timeout);
  REQUIRE(inquiry.take_questions() == missing);
  REQUIRE(!inquiry.hear(1, "at a.py:1 in f", Time{}));
  REQUIRE(!inquiry.hear(2, "at b.py:2 in g", Time{}));
  REQUIRE(!inquiry.hear(6, "", Time{}));
  REQUIRE(!inquiry.hear(7, "at c.py:3 in h", Time{}));  // was not asked
  REQUIRE(inquiry.hear(5, "at a.py:1 in f", Time{}));
  REQUIRE(report_of(inquiry, missing) ==
          "; ranks 1 and 5 are at a.py:1 in f; rank 2 is at b.py:2 in g");
  REQUIRE(report_of(inquiry, {2, 6}) == "; rank 2 is at b.py:2 in g");
}

TEST_CASE("few of many are asked, and nobody twice in a row") {
  Inquiry inquiry;
  std::vector<int> missing(1000);
  std::iota(missing.begin(), missing.end(), 0);
  REQUIRE(inquiry.begin(missing, Time{}));
  REQUIRE(inquiry.take_questions().size() == Inquiry::max_asked);
  REQUIRE(inquiry.begin(missing, Time{} + Inquiry::timeout / 2) == Time{} + Inquiry::timeout);
  REQUIRE(inquiry.take_questions().empty());
  for (int rank = 0; rank < static_cast<int>(Inquiry::max_asked); ++rank)
    inquiry.hear(rank, "at old.py:1", Time{});
  REQUIRE(!inquiry.begin(missing, Time{} + Inquiry::timeout / 2));
  REQUIRE(inquiry.begin(missing, Time{} + Inquiry::timeout));
  REQUIRE(inquiry.take_questions().size() == Inquiry::max_asked);
  // Old answers are not repeated.
  const std::string report = report_of(inquiry, missing, Time{} + 2 * Inquiry::timeout);
  REQUIRE(report.find("old.py") == std::string::npos);
}

TEST_CASE("what was said for one report is not lost to others that begin meanwhile") {
  Inquiry inquiry;
  const Time first = Time{} + Inquiry::timeout / 2;
  const Time second = Time{} + Inquiry::timeout;
  REQUIRE(inquiry.begin(std::vector{1}, Time{}));
  REQUIRE(inquiry.hear(1, "at a.py:1 in f", Time{}));
  REQUIRE(inquiry.begin(std::vector{1, 2}, first) == first + Inquiry::timeout);
  // Others ask the same rank again, or other ranks.
  REQUIRE(inquiry.begin(std::vector{3}, second));
  REQUIRE(inquiry.begin(std::vector{1, 3}, second));
  REQUIRE(inquiry.take_questions() == std::vector{1, 2, 3, 1});
  REQUIRE(report_of(inquiry, {1, 2}, second) ==
          "; rank 1 is at a.py:1 in f; rank 2 is silent: it has not said within 1 s where it is");
  inquiry.hear(1, "at b.py:2 in g", second);
  REQUIRE(report_of(inquiry, {1}, second) == "; rank 1 is at b.py:2 in g");
}

TEST_CASE("who was silent when it was asked before keeps nobody waiting") {
  Inquiry inquiry;
  REQUIRE(inquiry.begin(std::vector{1}, Time{}));
  REQUIRE(inquiry.begin(std::vector{2}, Time{} + Inquiry::timeout));
  REQUIRE(inquiry.hear(2, "at b.py:2 in g", Time{} + Inquiry::timeout));
}

TEST_CASE("answers travel in one line that is not too long") {
  const std::string broad(max_whereabouts - 1, 'x');
  const auto answer = decode_whereabouts_answer(encode(WhereaboutsAnswer{7, broad + "ä\ny"}));
  REQUIRE(answer);
  REQUIRE(answer->set_id == 7);
  REQUIRE(answer->text == broad);  // no partial character
  const auto lines = decode_whereabouts_answer(encode(WhereaboutsAnswer{-1, "a\nb\x1b[31m"}));
  REQUIRE(lines);
  REQUIRE(lines->text == "a b [31m");
  REQUIRE(decode_whereabouts_question(encode_whereabouts_question(12)) == 12);
}

TEST_CASE("what no rank of this build sends is malformed") {
  auto message = encode(WhereaboutsAnswer{1, "here"});
  REQUIRE(decode_whereabouts_answer(message));
  message[2] = std::byte{'\n'};
  REQUIRE(!decode_whereabouts_answer(message));
  message = encode(WhereaboutsAnswer{1, "here"});
  message.push_back(std::byte{0});
  REQUIRE(!decode_whereabouts_answer(message));
  message.resize(3);
  REQUIRE(!decode_whereabouts_answer(message));
  REQUIRE(!decode_whereabouts_answer({}));
  REQUIRE(!decode_whereabouts_question({}));
}

}  // namespace
}  // namespace rueda::test::inquiry_test
