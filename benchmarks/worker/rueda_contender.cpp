#include <rueda/rueda.h>

#include <string>
#include <utility>

#include "contenders.h"

namespace rueda_bench {
namespace {

std::shared_ptr<std::byte[]> allocate(const Work& work, std::size_t bytes) {
  return work.memory == "registered" ? rueda::allocate(bytes) : private_memory(bytes);
}

// A collective under a name that is the same in each call, as in a training.
class NamedCall : public Call {
 public:
  explicit NamedCall(const Work& work)
      : work_(work),
        name_(work.collective + "." + work.memory + "." + work.message.text("dtype") + "." +
              work.message.text("op") + "." + std::to_string(work.input_count)) {
    input_ = allocate(work, work.input_bytes());
    if (work.in_place) output_ = input_;
    view_ = {input_.get(), {static_cast<std::int64_t>(work.input_count)}, work.dtype};
  }

  void run() override {
    handle_ = start();
    handle_.wait();
  }

  [[nodiscard]] const std::byte* output() const override {
    return work_.in_place ? output_.get() : handle_.output().data.get();
  }

 private:
  [[nodiscard]] rueda::Handle start() const {
    if (work_.collective == "allreduce")
      return rueda::allreduce(view_, view_.data, {.name = name_, .op = work_.op});
    if (work_.collective == "allgather") return rueda::allgather(view_, {.name = name_});
    if (work_.collective == "broadcast") return rueda::broadcast(view_, work_.root, {name_});
    if (work_.collective == "reduce_scatter") {
      rueda::ReduceScatterOptions options;
      options.name = name_;
      options.op = work_.op;
      return rueda::reduce_scatter(view_, options);
    }
    if (work_.collective == "alltoall") return rueda::alltoall(view_, {}, {.name = name_});
    throw Unsupported("Rueda has no " + work_.collective);
  }

  const Work& work_;
  std::string name_;
  rueda::TensorView view_;
  rueda::Handle handle_;
};

class Rueda final : public Contender {
 public:
  Rueda() { rueda::init(); }
  ~Rueda() override { rueda::shutdown(); }
  Rueda(const Rueda&) = delete;
  Rueda& operator=(const Rueda&) = delete;

  [[nodiscard]] int rank() const override { return rueda::rank(); }
  [[nodiscard]] int size() const override { return rueda::size(); }

  [[nodiscard]] std::unique_ptr<Call> prepare(const Work& work) override {
    if (!rueda::is_supported(work.op, work.dtype)) {
      throw Unsupported(std::string("no ") + std::string(rueda::name_of(work.op)) + " of " +
                        std::string(rueda::name_of(work.dtype)));
    }
    return std::make_unique<NamedCall>(work);
  }
};

}  // namespace

std::unique_ptr<Contender> make_rueda(const std::string& /*path*/) {
  return std::make_unique<Rueda>();
}

}  // namespace rueda_bench
