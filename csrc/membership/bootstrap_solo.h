// A world of one rank.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "transport/bootstrap.h"

namespace rueda {

class SoloBootstrap final : public Bootstrap {
 public:
  [[nodiscard]] std::string_view name() const override { return "solo"; }
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }

  Status put(const std::string& key, const std::string& value) override;
  Expected<std::string> get(const std::string& key) override;
  Status barrier(Time) override { return {}; }

 private:
  std::map<std::string, std::string> known_;
};

}  // namespace rueda
