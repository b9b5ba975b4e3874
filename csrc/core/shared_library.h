// Finding and loading the libraries that Rueda is not linked against: MPI's, the CUDA driver, NCCL.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/options.h"
#include "core/status.h"

namespace rueda {

// A file to try, or a bare name that the dynamic linker searches for, and what made us think of it.
struct LibraryCandidate {
  std::string path;
  std::string why;
};

// The file that `symbol` was loaded from; empty where it cannot be told.
[[nodiscard]] std::string file_of(const void* symbol);
// Where librueda.so lies.
[[nodiscard]] std::filesystem::path own_folder();
// The site-packages folders in which wheels may lie, nearest first: above librueda.so (in a wheel
// it lies in site-packages/rueda/lib), then of the active environments.
[[nodiscard]] std::vector<std::filesystem::path> site_packages(const Environment& environment);

// Appends `path` unless it does not exist or is among the candidates already.
void add_if_exists(std::vector<LibraryCandidate>& candidates, const std::filesystem::path& path,
                   const std::string& why);

// A library of the process. It stays loaded for good: what came from it may be in use anywhere.
class SharedLibrary {
 public:
  // The first candidate that loads, with symbols of its own. `advice` goes into the error, before
  // what was tried and why each attempt failed.
  [[nodiscard]] static Expected<SharedLibrary> load(const std::vector<LibraryCandidate>& candidates,
                                                    const std::string& advice);
  // Null where there is none.
  [[nodiscard]] void* find(const char* symbol) const;

 private:
  explicit SharedLibrary(void* handle) : handle_(handle) {}
  void* handle_;
};

}  // namespace rueda
