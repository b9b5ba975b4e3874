#include "membership/starter.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "core/strings.h"

namespace rueda {

namespace {

// Taken as early as possible: a program may do a lot before it calls init().
const Noted at_load{::getpid(), ::getppid(), std::getenv("TORCHELASTIC_RUN_ID") != nullptr};

std::string command_line_of(pid_t process) {
  std::ifstream in(str("/proc/", process, "/cmdline"), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// 0 if it cannot be read.
int parent_of(pid_t process) {
  std::ifstream in(str("/proc/", process, "/stat"));
  std::string text;
  std::getline(in, text);
  // "4711 (a name with any) characters) S 4710 ..."
  std::istringstream rest(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  char state = 0;
  int parent = 0;
  rest >> state >> parent;
  return parent;
}

std::vector<int> own_line() {
  std::vector<int> line{::getpid(), ::getppid()};
  while (line.back() > 1) line.push_back(parent_of(line.back()));
  return line;
}

// Works only for processes of the same user, as agents are.
std::string program_of(pid_t process) {
  std::error_code error;
  return std::filesystem::read_symlink(str("/proc/", process, "/exe"), error).string();
}

// Judged by its words, without folders, whose names may be anything.
bool may_be_agent(std::string_view text) {
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find('\0'));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    const std::string_view name = word.substr(word.rfind('/') + 1);
    if (name.find("python") != name.npos || name.find("torch") != name.npos) return true;
  }
  return false;
}

// Whether the process that loaded this library, its parent if that is the agent, or any process
// between it and this one has ended.
bool is_cut(const std::vector<int>& line, const Noted& noted) {
  const auto loader = std::ranges::find(line, noted.process);
  if (loader == line.end()) return !line.empty() && line.back() == 1;
  const bool is_itself = loader == line.begin();
  if (noted.parent <= 0 || (!is_itself && !noted.is_rank)) return false;
  const auto parent = std::next(loader);
  return parent != line.end() && *parent > 0 && *parent != noted.parent;
}

}  // namespace

bool has_lost_agent(const Ancestry& ancestry) {
  if (is_cut(ancestry.line, ancestry.noted)) return true;
  const bool has_parent = ancestry.line.size() > 1 && ancestry.line[1] > 0;
  if (!ancestry.leads_session || !has_parent) return false;
  return !ancestry.parent_line.empty() && !may_be_agent(ancestry.parent_line) &&
         !may_be_agent(ancestry.parent_program);
}

bool has_lost_agent() {
  const std::vector<int> line = own_line();
  const std::string parent_line = command_line_of(line[1]);
  const std::string program = program_of(line[1]);
  return has_lost_agent({.line = line,
                         .noted = at_load,
                         .leads_session = ::getsid(0) == ::getpid(),
                         .parent_line = parent_line,
                         .parent_program = program});
}

}  // namespace rueda
