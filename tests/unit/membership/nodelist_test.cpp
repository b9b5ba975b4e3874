#include "membership/nodelist.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/strings.h"
#include "unit/contains.h"

namespace rueda::test::nodelist_test {

namespace {

using Names = std::vector<std::string>;

std::string padded(int number, std::size_t width) {
  const std::string plain = std::to_string(number);
  return std::string(width > plain.size() ? width - plain.size() : 0, '0') + plain;
}

// A list and its names, generated independently of the parser as a product.
struct Generated {
  std::string list;
  Names names;
};

class Generator {
 public:
  // `as_slurm`: only lists that Slurm's own parser accepts and orders alike, see nodelist.h.
  explicit Generator(unsigned seed, bool as_slurm = false) : random_(seed), as_slurm_(as_slurm) {}

  Generated list() {
    Generated all;
    for (int entries = up_to(1, 4); entries > 0; --entries) {
      const Generated one = entry();
      all.list += (all.list.empty() ? "" : ",") + one.list;
      all.names.insert(all.names.end(), one.names.begin(), one.names.end());
    }
    return all;
  }

 private:
  int up_to(int low, int high) { return std::uniform_int_distribution<>(low, high)(random_); }

  Generated bracket() {
    Generated made{"[", {}};
    for (int ranges = up_to(1, 3); ranges > 0; --ranges) {
      const int first = up_to(0, 120);
      const int last = first + up_to(0, 5);
      const std::size_t width = static_cast<std::size_t>(up_to(1, 4));
      if (made.list.size() > 1) made.list += ",";
      made.list += padded(first, width);
      const std::size_t written = padded(first, width).size();
      if (last > first) made.list += "-" + padded(last, written);
      for (int number = first; number <= last; ++number) {
        made.names.push_back(padded(number, written));
      }
    }
    made.list += "]";
    return made;
  }

  Generated entry() {
    static const Names texts{"n", "gpu-7", "rack", "a.b", "x9"};
    Generated made{"", {""}};
    for (int parts = up_to(1, as_slurm_ ? 2 : 3); parts > 0; --parts) {
      const std::string& text = texts[static_cast<std::size_t>(up_to(0, 4))];
      made.list += text;
      for (std::string& name : made.names) name += text;
      if (!as_slurm_ && up_to(0, 2) == 0) continue;
      const Generated numbers = bracket();
      made.list += numbers.list;
      Names product;
      for (const std::string& name : made.names) {
        for (const std::string& number : numbers.names) product.push_back(name + number);
      }
      made.names = std::move(product);
    }
    return made;
  }

  std::mt19937 random_;
  bool as_slurm_;
};

Names named_by_slurm(const std::string& list) {
  // scontrol requires a configuration file, although it uses nothing from it.
  const std::string command =
      str("file=$(mktemp) || exit; trap 'rm $file' EXIT; "
          "printf 'ClusterName=a\\nSlurmctldHost=a\\nAuthType=auth/none\\n' >$file; "
          "SLURM_CONF=$file scontrol show hostnames '",
          list, "'");
  std::FILE* output = ::popen(command.c_str(), "r");
  REQUIRE(output != nullptr);
  Names names;
  std::array<char, 256> line{};
  while (std::fgets(line.data(), line.size(), output) != nullptr) {
    names.emplace_back(line.data());
    names.back().pop_back();  // the newline
  }
  CHECK(::pclose(output) == 0);
  return names;
}

}  // namespace

TEST_CASE("Slurm's node lists are expanded in order") {
  const std::vector<std::pair<const char*, Names>> table{
      {"node", {"node"}},
      {"n[01-03,15],gpu7", {"n01", "n02", "n03", "n15", "gpu7"}},
      {"n[8-11]", {"n8", "n9", "n10", "n11"}},
      {"n[08-11]", {"n08", "n09", "n10", "n11"}},
      {"n[98-101]", {"n98", "n99", "n100", "n101"}},
      {"rack[1-2]node[3-4]", {"rack1node3", "rack1node4", "rack2node3", "rack2node4"}},
      {"n[1-2]-ib,n[1-1]", {"n1-ib", "n2-ib", "n1"}},
      {"n[0]", {"n0"}},
  };
  for (const auto& [list, names] : table) {
    INFO(list);
    const auto expanded = expand_node_list(list);
    REQUIRE(expanded.ok());
    CHECK(expanded.value() == names);
  }
}

TEST_CASE("any list names what it was made of") {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    const Generated made = Generator(seed).list();
    INFO("seed " << seed << ": " << made.list);
    const auto expanded = expand_node_list(made.list);
    REQUIRE(expanded.ok());
    REQUIRE(expanded.value() == made.names);
  }
}

TEST_CASE("Slurm understands its lists as we do") {
  std::ifstream recorded(RUEDA_NODELISTS);
  std::size_t lists = 0;
  for (std::string line; std::getline(recorded, line);) {
    if (line.front() == '#') continue;
    std::istringstream words(line);
    std::string list;
    words >> list;
    const Names names{std::istream_iterator<std::string>(words), {}};
    INFO(list);
    const auto expanded = expand_node_list(list);
    REQUIRE(expanded.ok());
    REQUIRE(expanded.value() == names);
    ++lists;
  }
  CHECK(lists > 100);
}

TEST_CASE("the Slurm of this machine understands its lists as we do") {
  if (std::system("command -v scontrol >/dev/null") != 0) {
    WARN("Slurm is not installed: what it says elsewhere is recorded, see above");
    return;
  }
  for (unsigned seed = 0; seed < 100; ++seed) {
    const Generated made = Generator(seed, true).list();
    INFO("seed " << seed << ": " << made.list);
    const auto expanded = expand_node_list(made.list);
    REQUIRE(expanded.ok());
    REQUIRE(expanded.value() == named_by_slurm(made.list));
  }
}

TEST_CASE("a node list that makes no sense is refused with the position") {
  const std::vector<std::pair<std::string, int>> table{
      {"", 1},      {"a,", 3},      {",a", 1},      {"a,,b", 3},
      {"n[", 3},    {"n[1", 4},     {"n[1-", 5},    {"n[]", 3},
      {"n[1,]", 5}, {"n[x]", 3},    {"n[1-2x]", 6}, {"n[2-1]", 6},
      {"n]", 2},    {"n[1[2]]", 4}, {"n[-3]", 3},   {"n[1000000000000000000]", 22},
  };
  for (const auto& [list, position] : table) {
    INFO(list);
    const auto expanded = expand_node_list(list);
    REQUIRE_FALSE(expanded.ok());
    CHECK(expanded.status().code() == ErrorCode::invalid_argument);
    CHECK(contains(expanded.status().to_string(), str("at position ", position, ":")));
  }
}

TEST_CASE("a node list cannot exhaust the memory") {
  CHECK(expand_node_list("n[1-65536]").ok());
  for (const char* list : {"n[0-65536]", "n[1-65536],m", "a[1-300]b[1-300]",
                           "n[0-999999999999999999]", "n[1-65536,1]"}) {
    INFO(list);
    const auto expanded = expand_node_list(list);
    REQUIRE_FALSE(expanded.ok());
    CHECK(contains(expanded.status().to_string(), "more than 65536 nodes"));
  }
}

TEST_CASE("cut and changed lists are refused or understood, never more") {
  std::mt19937 random(7);
  const std::string letters = "n[],-019a";
  for (int round = 0; round < 20000; ++round) {
    std::string list;
    for (auto length = random() % 12; length > 0; --length) {
      list += letters[random() % letters.size()];
    }
    INFO(list);
    const auto expanded = expand_node_list(list);
    if (!expanded.ok()) continue;
    REQUIRE_FALSE(expanded.value().empty());
    for (const std::string& name : expanded.value()) {
      REQUIRE_FALSE(name.empty());
      REQUIRE(name.find_first_of("[],") == std::string::npos);
    }
  }
}

}  // namespace rueda::test::nodelist_test
