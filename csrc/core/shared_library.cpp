#include "core/shared_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <utility>

#include "core/strings.h"

namespace rueda {

namespace fs = std::filesystem;

namespace {

std::string python_prefix;

void add_folder(std::vector<fs::path>& folders, const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) return;
  if (std::find(folders.begin(), folders.end(), folder) == folders.end()) folders.push_back(folder);
}

}  // namespace

std::string file_of(const void* symbol) {
  Dl_info info{};
  if (dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code ignored;
  const fs::path path = fs::weakly_canonical(info.dli_fname, ignored);
  return path.empty() ? info.dli_fname : path.string();
}

fs::path own_folder() {
  static const int anchor = 0;
  return fs::path(file_of(&anchor)).parent_path();
}

void set_python_prefix(std::string prefix) {
  python_prefix = std::move(prefix);
}

std::vector<Prefix> environment_prefixes(const Environment& environment) {
  std::vector<Prefix> prefixes;
  const auto add = [&prefixes](const fs::path& path, std::string_view why) {
    const auto is_same = [&path](const Prefix& other) { return other.path == path; };
    if (!path.empty() && std::ranges::none_of(prefixes, is_same)) prefixes.push_back({path, why});
  };
  add(python_prefix, "sys.prefix");
  for (const std::string_view variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    add(environment(variable).value_or(""), variable);
  }
  return prefixes;
}

std::vector<fs::path> site_packages(const Environment& environment) {
  std::vector<fs::path> folders;
  for (fs::path up = own_folder(); up.has_relative_path(); up = up.parent_path()) {
    if (up.filename() == "site-packages" || up.filename() == "dist-packages")
      add_folder(folders, up);
  }
  for (const Prefix& prefix : environment_prefixes(environment)) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(prefix.path / "lib", ignored)) {
      if (entry.path().filename().string().starts_with("python3"))
        add_folder(folders, entry.path() / "site-packages");
    }
  }
  return folders;
}

void add_if_exists(std::vector<LibraryCandidate>& candidates, const fs::path& path,
                   const std::string& why) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return;
  const auto is_same = [&](const LibraryCandidate& other) { return other.path == path.string(); };
  if (std::none_of(candidates.begin(), candidates.end(), is_same))
    candidates.push_back({path.string(), why});
}

Expected<SharedLibrary> SharedLibrary::load(const std::vector<LibraryCandidate>& candidates,
                                            const std::string& advice) {
  std::string tried;
  for (const LibraryCandidate& candidate : candidates) {
    void* handle = dlopen(candidate.path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return SharedLibrary(handle);
    const char* reason = dlerror();
    tried += str("\n  ", candidate.why, ": ", reason == nullptr ? candidate.path : reason);
  }
  return Status(ErrorCode::initialization, str(advice, " Tried:", tried));
}

void* SharedLibrary::find(const char* symbol) const {
  return dlsym(handle_, symbol);
}

}  // namespace rueda
