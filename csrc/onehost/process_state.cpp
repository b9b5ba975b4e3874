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

// The state stands behind the name, which is in parentheses and may have any characters.
char state_in(const std::string& stat) {
  const std::size_t end = stat.rfind(')');
  return end != std::string::npos && end + 2 < stat.size() ? stat[end + 2] : '?';
}

// As the kernel counts them: each is a link of the folder, beside the folder's own two.
std::optional<std::size_t> threads_in(const std::string& folder) {
  struct stat found{};
  if (::stat(folder.c_str(), &found) != 0 || found.st_nlink < 2) return std::nullopt;
  return static_cast<std::size_t>(found.st_nlink) - 2;
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
  if (process <= 0) return false;
  std::error_code error;
  const std::filesystem::directory_iterator none;
  std::filesystem::directory_iterator thread(str("/proc/", process, "/task"), error);
  for (; !error && thread != none; thread.increment(error)) {
    std::ifstream in(thread->path() / "stat");
    std::string stat;
    if (std::getline(in, stat) && state_in(stat) == 'R') return true;
  }
  return false;
}

// A thread's memory has a program until the thread gives it up. What else of it is under /proc is
// read through its memory, and so might leave it to this thread to take that down.
//
// Where a thread goes while they are listed, the list leaves others out. So it counts only where
// all of them were in it, before and after.
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
  // Of one that has been reaped, or is hidden, nothing is known here.
  return !error && seen > 0 && before == seen && threads_in(folder) == seen;
}

}  // namespace rueda
