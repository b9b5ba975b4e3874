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

// A collective under a name that is the same in each call, as in a training, with its result where
// the caller wants it, as MPI has it.
class NamedCall final : public Call {
 public:
  explicit NamedCall(const Work& work) : work_(work), name_(name_of(work)) {
    input_ = allocate(work, work.input_bytes());
    output_ = work.in_place ? input_ : allocate(work, work.output_bytes());
    view_ = view_of(work, input_.get());
    if (!work.in_place) result_ = {output_.get(), work.output_bytes()};
  }

  void run() override {
    const rueda::CallOptions options{.name = name_, .result = result_};
    if (work_.collective == "allreduce") {
      rueda::allreduce_blocking(view_, view_.data, {.name = name_, .op = work_.op});
    } else if (work_.collective == "allgather") {
      rueda::allgather_blocking(view_, options);
    } else if (work_.collective == "broadcast") {
      rueda::broadcast_blocking(view_, work_.root, {.name = name_});
    } else if (work_.collective == "reduce_scatter") {
      rueda::reduce_scatter_blocking(view_, {.name = name_, .op = work_.op, .result = result_});
    } else if (work_.collective == "alltoall") {
      rueda::alltoall_blocking(view_, {}, options);
    } else {
      throw Unsupported("Rueda has no " + work_.collective);
    }
  }

 private:
  const Work& work_;
  std::string name_;
  rueda::TensorView view_;
  rueda::ResultMemory result_;
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
