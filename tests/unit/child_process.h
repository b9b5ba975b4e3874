// Real processes in tests, for what threads cannot simulate.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>

namespace rueda::test {

// Sanitizers reserve more address space than any limit would leave.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool can_limit_addresses = false;
#else
inline constexpr bool can_limit_addresses = true;
#endif

// Runs `body` in a child, which exits with 0, or with 1 after printing the exception. `body` must
// not use Catch assertions.
inline pid_t start_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  int code = 0;
  try {
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child: %s\n", error.what());
    code = 1;
  }
  ::_exit(code);
}

// The exit code, or -1 if a signal ended the child.
inline int exit_code_of_child(pid_t child) {
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

inline int exit_code_of(const std::function<void()>& body) {
  return exit_code_of_child(start_child(body));
}

// The number of this process's open descriptors.
inline std::size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

// The sum of a field over all mappings of this process.
inline std::size_t kilobytes_of_mappings(const std::string& field) {
  std::ifstream mappings("/proc/self/smaps");
  std::size_t sum = 0;
  for (std::string line; std::getline(mappings, line);) {
    if (line.rfind(field + ":", 0) != 0) continue;
    std::size_t kilobytes = 0;
    std::istringstream(line.substr(field.size() + 1)) >> kilobytes;
    sum += kilobytes;
  }
  return sum;
}

}  // namespace rueda::test
