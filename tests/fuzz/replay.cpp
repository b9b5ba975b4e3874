// fuzz_replay TARGET [COUNT [SEED]]         runs the seeds, and COUNT random changes of them
// fuzz_replay TARGET --write-seeds FOLDER   writes the seeds, one file each
// fuzz_replay TARGET --files FILE...        runs these inputs
// fuzz_replay --targets                     names the targets
//
// Needs no fuzzing engine. What fails is left in fuzz-TARGET.input, to be run with --files.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "core/log.h"
#include "fuzz/target.h"

namespace rueda::fuzz {

namespace {

// For the handler of a crash.
std::string failure_file;
const Bytes* current = nullptr;

void keep_input(int signal) {
  const int fd = ::open(failure_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd >= 0 && current != nullptr) {
    [[maybe_unused]] const auto written = ::write(fd, current->data(), current->size());
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void run(const Target& target, const Bytes& input) {
  current = &input;
  target.run(input);
  current = nullptr;
}

// A few bytes altered, removed, repeated, or taken from another seed.
Bytes changed(const std::vector<Bytes>& seeds, std::mt19937_64& random) {
  const auto below = [&](std::size_t limit) { return limit == 0 ? 0 : random() % limit; };
  Bytes bytes = seeds[below(seeds.size())];
  for (auto left = 1 + below(8); left > 0; --left) {
    const auto at = static_cast<std::ptrdiff_t>(below(bytes.size() + 1));
    const auto place = bytes.begin() + at;
    const auto rest = static_cast<std::size_t>(bytes.end() - place);
    const auto length = static_cast<std::ptrdiff_t>(std::min(rest, 1 + below(16)));
    switch (below(6)) {
      case 0:
        if (rest > 0) *place ^= static_cast<std::byte>(1U << below(8));
        break;
      case 1:
        if (rest > 0) *place = static_cast<std::byte>(below(256));
        break;
      case 2:
        if (rest > 0) *place = static_cast<std::byte>(below(2) == 0 ? 0xff : 0);
        break;
      case 3: bytes.erase(place, place + length); break;
      case 4: {
        const Bytes again(place, place + length);
        bytes.insert(place, again.begin(), again.end());
        break;
      }
      default: {
        const Bytes& other = seeds[below(seeds.size())];
        const auto from = static_cast<std::ptrdiff_t>(below(other.size()));
        bytes.insert(place, other.begin() + from, other.end());
        break;
      }
    }
  }
  constexpr std::size_t max_input = 1 << 16;
  bytes.resize(std::min(bytes.size(), max_input));
  return bytes;
}

int replay(const Target& target, std::size_t count, std::uint64_t seed) {
  const std::vector<Bytes> seeds = target.seeds();
  run(target, {});
  for (const Bytes& input : seeds) run(target, input);
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < count; ++i) run(target, changed(seeds, random));
  std::printf("%s: %zu seeds, %zu changes of them\n", std::string(target.name).c_str(),
              seeds.size(), count);
  return seeds.empty() ? 1 : 0;
}

int write_seeds(const Target& target, const std::string& folder) {
  int number = 0;
  for (const Bytes& input : target.seeds()) {
    std::ofstream file(folder + "/seed-" + std::to_string(number++), std::ios::binary);
    file.write(reinterpret_cast<const char*>(input.data()),
               static_cast<std::streamsize>(input.size()));
    if (!file) return 1;
  }
  return 0;
}

int run_file(const Target& target, const char* name) {
  std::ifstream file(name, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "cannot read %s\n", name);
    return 1;
  }
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto bytes = std::as_bytes(std::span(text));
  run(target, {bytes.begin(), bytes.end()});
  return 0;
}

int main_of(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--targets") {
    for (const Target* target : all_targets) std::puts(std::string(target->name).c_str());
    return 0;
  }
  const Target* const target = find_target(first);
  if (target == nullptr) {
    std::fprintf(stderr, "'%s' is no target\n", first.c_str());
    return 2;
  }
  set_log_level(LogLevel::off);
  failure_file = "fuzz-" + first + ".input";
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE, SIGABRT}) {
    std::signal(signal, keep_input);
  }
  const std::string second = argc > 2 ? argv[2] : "20000";
  if (second == "--write-seeds" && argc == 4) return write_seeds(*target, argv[3]);
  if (second == "--files") {
    int failed = 0;
    for (int i = 3; i < argc; ++i) failed |= run_file(*target, argv[i]);
    return failed;
  }
  return replay(*target, std::stoul(second), argc > 3 ? std::stoul(argv[3]) : 1);
}

}  // namespace

}  // namespace rueda::fuzz

int main(int argc, char** argv) {
  return rueda::fuzz::main_of(argc, argv);
}
