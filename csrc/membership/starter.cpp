#include "membership/starter.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "core/strings.h"

namespace rueda {

namespace {

struct Noted {
  pid_t process = ::getpid();
  pid_t parent = ::getppid();
};

// As early as can be: a program may do much before it calls init().
const Noted noted;

std::string command_line_of(pid_t process) {
  std::ifstream in(str("/proc/", process, "/cmdline"), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Only of a process of the same user, as an agent is.
std::string program_of(pid_t process) {
  std::error_code error;
  return std::filesystem::read_symlink(str("/proc/", process, "/exe"), error).string();
}

// By one of its words, each without its folders, which may be called anything.
bool may_be_agent(std::string_view text) {
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find('\0'));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    const std::string_view name = word.substr(word.rfind('/') + 1);
    if (name.find("python") != name.npos || name.find("torch") != name.npos) return true;
  }
  return false;
}

}  // namespace

bool has_lost_agent(const Ancestry& ancestry) {
  if (ancestry.noted_parent > 0 && ancestry.parent != ancestry.noted_parent) return true;
  if (!ancestry.leads_session || ancestry.parent <= 0) return false;
  return !ancestry.parent_line.empty() && !may_be_agent(ancestry.parent_line) &&
         !may_be_agent(ancestry.parent_program);
}

bool has_lost_agent() {
  const pid_t parent = ::getppid();
  const std::string line = command_line_of(parent);
  const std::string program = program_of(parent);
  return has_lost_agent({.parent = parent,
                         .noted_parent = noted.process == ::getpid() ? noted.parent : 0,
                         .leads_session = ::getsid(0) == ::getpid(),
                         .parent_line = line,
                         .parent_program = program});
}

}  // namespace rueda
