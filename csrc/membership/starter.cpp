#include "membership/starter.h"

#include <unistd.h>

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

// The name under which it was started, without folders.
std::string_view program_of(std::string_view line) {
  line = line.substr(0, line.find('\0'));
  return line.substr(line.rfind('/') + 1);
}

}  // namespace

bool has_lost_agent(const Ancestry& ancestry) {
  if (ancestry.noted_parent > 0 && ancestry.parent != ancestry.noted_parent) return true;
  if (!ancestry.leads_session || ancestry.parent <= 0) return false;
  const std::string_view program = program_of(ancestry.parent_line);
  return !program.empty() && program.find("python") == program.npos &&
         program.find("torch") == program.npos;
}

bool has_lost_agent() {
  const pid_t parent = ::getppid();
  const std::string line = command_line_of(parent);
  return has_lost_agent({.parent = parent,
                         .noted_parent = noted.process == ::getpid() ? noted.parent : 0,
                         .leads_session = ::getsid(0) == ::getpid(),
                         .parent_line = line});
}

}  // namespace rueda
