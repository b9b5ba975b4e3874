#include "core/shared_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <string_view>

#include "core/strings.h"

namespace rueda {

namespace fs = std::filesystem;

namespace {

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

std::vector<fs::path> site_packages(const Environment& environment) {
  std::vector<fs::path> folders;
  for (fs::path up = own_folder(); up.has_relative_path(); up = up.parent_path()) {
    if (up.filename() == "site-packages" || up.filename() == "dist-packages")
      add_folder(folders, up);
  }
  for (const std::string_view variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const auto prefix = environment(variable);
    if (!prefix || prefix->empty()) continue;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(fs::path(*prefix) / "lib", ignored)) {
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
