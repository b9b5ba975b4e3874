#include "onehost/process_state.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>

#include "core/strings.h"

namespace rueda {

namespace {

// The state follows the name, which is in parentheses and may contain any characters.
char state_in(const std::string& stat) {
  const std::size_t end = stat.rfind(')');
  return end != std::string::npos && end + 2 < stat.size() ? stat[end + 2] : '?';
}

// The kernel's count: one link of the folder per thread, besides the folder's own two.
std::optional<std::size_t> threads_in(const std::string& folder) {
  struct stat found{};
  if (::stat(folder.c_str(), &found) != 0 || found.st_nlink < 2) return std::nullopt;
  return static_cast<std::size_t>(found.st_nlink) - 2;
}

// The letter of each thread's state; '?' for those of which it is unknown.
std::string states_of(int process) {
  std::string states;
  if (process <= 0) return states;
  std::error_code error;
  const std::filesystem::directory_iterator none;
  std::filesystem::directory_iterator thread(str("/proc/", process, "/task"), error);
  for (; !error && thread != none; thread.increment(error)) {
    std::ifstream in(thread->path() / "stat");
    std::string stat;
    states += std::getline(in, stat) ? state_in(stat) : '?';
  }
  return states;
}

}  // namespace

int identifier_of(int process_descriptor) {
  if (process_descriptor < 0) return -1;
  std::ifstream in(str("/proc/self/fdinfo/", process_descriptor));
  for (std::string word; in >> word;) {
    int identifier = -1;
    if (word == "Pid:" && in >> identifier) return identifier > 0 ? identifier : -1;
  }
  return -1;
}

bool is_runnable(int process) {
  return states_of(process).find('R') != std::string::npos;
}

bool is_stopped(int process) {
  const std::string states = states_of(process);
  return !states.empty() && states.find_first_not_of('T') == std::string::npos;
}

bool is_dumping_core(int process) {
  if (process <= 0) return false;
  std::ifstream in(str("/proc/", process, "/status"));
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("CoreDumping:")) return line.ends_with('1');
  }
  return false;
}

// A thread's memory has a program until the thread gives it up. Other entries under /proc are read
// through its memory, which could leave tearing that memory down to this thread.
//
// If a thread ends while they are listed, the list can miss others. So it counts only if it was
// complete, before and after.
bool has_left_memory(int process) {
  if (process <= 0) return false;
  const std::string folder = str("/proc/", process, "/task");
  const std::optional<std::size_t> before = threads_in(folder);
  std::size_t seen = 0;
  std::error_code error;
  const std::filesystem::directory_iterator none;
  std::filesystem::directory_iterator thread(folder, error);
  for (; !error && thread != none; thread.increment(error), ++seen) {
    std::array<char, 1> ignored{};
    const std::string program = thread->path() / "exe";
    if (::readlink(program.c_str(), ignored.data(), ignored.size()) >= 0) return false;
    if (errno != ENOENT && errno != ESRCH) return false;
  }
  // Nothing is known about a process that has been reaped or is hidden.
  return !error && seen > 0 && before == seen && threads_in(folder) == seen;
}

}  // namespace rueda
