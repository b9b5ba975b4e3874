// Whether a text or an error message contains a part.
#pragma once

#include <string>

#include "core/status.h"

namespace rueda::test {

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
inline bool contains(const Status& status, const std::string& part) {
  return contains(status.to_string(), part);
}

}  // namespace rueda::test
