// Fake kernel files (/proc, cgroups) in a temporary folder.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/control_groups.h"

namespace rueda::test {

class SystemFiles {
 public:
  // `groups`: content of /proc/self/cgroup.
  explicit SystemFiles(const std::string& groups)
      : folder_(std::filesystem::temp_directory_path() /
                ("rueda-system-files-" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(folder_);
    write("groups", groups);
  }
  ~SystemFiles() { std::filesystem::remove_all(folder_); }
  SystemFiles(const SystemFiles&) = delete;
  SystemFiles& operator=(const SystemFiles&) = delete;

  // Names of cgroup files begin with "mount/".
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << '\n';
  }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }
  [[nodiscard]] ControlGroupFiles control_groups() const { return {path("groups"), path("mount")}; }

 private:
  std::filesystem::path folder_;
};

}  // namespace rueda::test
