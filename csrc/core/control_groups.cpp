#include "core/control_groups.h"

#include <fstream>

namespace rueda {

namespace {

// Version 1 mounts some controllers under all of their names, others only under their own.
bool names(const std::string& controllers, std::string_view controller) {
  return ("," + controllers + ",").find("," + std::string(controller) + ",") != std::string::npos;
}

}  // namespace

void for_each_control_group(
    const ControlGroupFiles& files, std::string_view controller,
    const std::function<void(const std::string& folder, int version)>& look) {
  std::ifstream file(files.groups);
  std::string line;
  while (std::getline(file, line)) {  // number:controllers:/path
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const int version = controllers.empty() ? 2 : 1;
    if (version == 1 && !names(controllers, controller)) continue;
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      if (version == 2) {
        look(files.mount + path, version);
      } else {
        look(files.mount + "/" + std::string(controller) + path, version);
        if (controllers != controller) look(files.mount + "/" + controllers + path, version);
      }
      if (path.find('/') == std::string::npos) break;
    }
  }
}

}  // namespace rueda
