// Finds and loads libraries that Rueda is not linked against: MPI's, the CUDA driver, NCCL.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/options.h"
#include "core/status.h"

namespace rueda {

// A file to try, or a bare name that the dynamic linker searches for, and why it is a candidate.
struct LibraryCandidate {
  std::string path;
  std::string why;
};

// The file from which `symbol` was loaded; empty if unknown.
[[nodiscard]] std::string file_of(const void* symbol);
// The folder of librueda.so.
[[nodiscard]] std::filesystem::path own_folder();
// Python's sys.prefix, which no variable tells if its environment is not activated. The bindings
// set it when they are loaded, before anything is searched for.
void set_python_prefix(std::string prefix);
// The running Python's environment, then the active ones, each once. They need not exist.
struct Prefix {
  std::filesystem::path path;
  std::string_view why;  // "sys.prefix" or the variable that names it
};
[[nodiscard]] std::vector<Prefix> environment_prefixes(const Environment& environment);
// The site-packages folders that may contain wheels, nearest first: the one above librueda.so (in a
// wheel that is in site-packages/rueda/lib), then those of environment_prefixes().
[[nodiscard]] std::vector<std::filesystem::path> site_packages(const Environment& environment);

// Appends `path` if it exists and is not yet among the candidates.
void add_if_exists(std::vector<LibraryCandidate>& candidates, const std::filesystem::path& path,
                   const std::string& why);

// A library of the process. It is never unloaded: what came from it may be in use anywhere.
class SharedLibrary {
 public:
  // The first candidate that loads, with its symbols kept local. The error has `advice`, then what
  // was tried and why each attempt failed.
  [[nodiscard]] static Expected<SharedLibrary> load(const std::vector<LibraryCandidate>& candidates,
                                                    const std::string& advice);
  // Null if there is no such symbol.
  [[nodiscard]] void* find(const char* symbol) const;

 private:
  explicit SharedLibrary(void* handle) : handle_(handle) {}
  void* handle_;
};

}  // namespace rueda
