#include "api/start_runtime.h"

#include <utility>

namespace rueda {

std::shared_ptr<Runtime> start_runtime(World world, Bootstrap& bootstrap, const Options& options,
                                       std::function<void(const Status&)> on_failure,
                                       Runtime::Inheritance inherited) {
  auto started = Runtime::start(std::move(world), options, LossPolicy::end_world,
                                std::move(on_failure), std::move(inherited));
  const Time deadline = Clock::now() + seconds(options.init_timeout);
  bootstrap.begin_last();
  const Status all = bootstrap.agree("connected", started.status(), deadline);
  if (!all.ok() && started) (*started)->abort(all.to_string());
  all.throw_if_error();
  return std::move(started).value();
}

}  // namespace rueda
