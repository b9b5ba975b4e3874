#include <rueda/persistent.h>
#include <rueda/rueda.h>

#include <string>
#include <utility>

#include "contenders.h"

namespace rueda_bench {
namespace {

std::shared_ptr<std::byte[]> allocate(const Work& work, std::size_t bytes) {
  return work.memory == "registered" ? rueda::allocate(bytes) : private_memory(bytes);
}

// The same for every block of the same work.
std::string name_of(const Work& work) {
  return work.collective + "." + work.memory + "." + work.message.text("dtype") + "." +
         work.message.text("op") + "." + std::to_string(work.input_count);
}

rueda::TensorView view_of(const Work& work, std::byte* memory) {
  return {memory, {static_cast<std::int64_t>(work.input_count)}, work.dtype};
}

// An allreduce that is negotiated once.
class DirectCall final : public Call {
 public:
  explicit DirectCall(const Work& work) : DirectCall(work, allocate(work, work.input_bytes())) {}

  void run() override {
    sum_.start();
    sum_.wait();
  }

 private:
  DirectCall(const Work& work, const std::shared_ptr<std::byte[]>& memory)
      : sum_(view_of(work, memory.get()), {.name = "direct." + name_of(work), .op = work.op}) {
    input_ = output_ = memory;
  }

  rueda::Allreduce sum_;
};

// A collective under a name that is the same in each call, as in a training.
class NamedCall final : public Call {
 public:
  explicit NamedCall(const Work& work) : work_(work), name_(name_of(work)) {
    input_ = allocate(work, work.input_bytes());
    if (work.in_place) output_ = input_;
    view_ = view_of(work, input_.get());
  }

  void run() override {
    if (work_.collective == "allreduce") {
      return rueda::allreduce_blocking(view_, view_.data, {.name = name_, .op = work_.op});
    }
    handle_ = start();
    handle_.wait();
  }

  [[nodiscard]] const std::byte* output() const override {
    return work_.in_place ? output_.get() : handle_.output().data.get();
  }

 private:
  [[nodiscard]] rueda::Handle start() const {
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
  explicit Rueda(bool direct) : direct_(direct) { rueda::init(); }
  ~Rueda() override { rueda::shutdown(); }
  Rueda(const Rueda&) = delete;
  Rueda& operator=(const Rueda&) = delete;

  [[nodiscard]] int rank() const override { return rueda::rank(); }
  [[nodiscard]] int size() const override { return rueda::size(); }

  [[nodiscard]] std::map<std::string, std::string> facts() const override {
    const auto options = rueda::options();
    return {{"version", "Rueda " RUEDA_VERSION},
            {"algorithms", options.at("algorithm")},
            {"transport", options.at("transport")}};
  }

  [[nodiscard]] std::unique_ptr<Call> prepare(const Work& work) override {
    if (!rueda::is_supported(work.op, work.dtype)) {
      throw Unsupported(std::string("no ") + std::string(rueda::name_of(work.op)) + " of " +
                        std::string(rueda::name_of(work.dtype)));
    }
    // Of the collectives allreduce has a persistent form.
    if (direct_ && work.collective == "allreduce") return std::make_unique<DirectCall>(work);
    return std::make_unique<NamedCall>(work);
  }

 private:
  bool direct_;
};

}  // namespace

std::unique_ptr<Contender> make_rueda(const std::string& path) {
  return std::make_unique<Rueda>(path == "direct");
}

}  // namespace rueda_bench
