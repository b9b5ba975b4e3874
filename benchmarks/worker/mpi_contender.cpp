#include <dlfcn.h>

#include <climits>
#include <stdexcept>

#include "contenders.h"
#include "mpi_abi.h"

namespace rueda_bench {
namespace {

Lookup open_library(const std::string& path) {
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) throw std::runtime_error(::dlerror());
  return [library](const std::string& symbol) {
    void* const found = ::dlsym(library, symbol.c_str());
    if (found == nullptr) throw std::runtime_error("the MPI library has no " + symbol);
    return found;
  };
}

// The functions used, with the handles of one of the interfaces.
template <class Abi>
struct Functions {
  using Handle = typename Abi::Handle;
  using Send = const void*;
  using Receive = void*;

  explicit Functions(const Lookup& lookup) : find(lookup) {
    set("MPI_Init", init);
    set("MPI_Finalize", finalize);
    set("MPI_Comm_rank", comm_rank);
    set("MPI_Comm_size", comm_size);
    set("MPI_Get_library_version", version);
    set("MPI_Allreduce", allreduce);
    set("MPI_Bcast", bcast);
    set("MPI_Allgather", allgather);
    set("MPI_Alltoall", alltoall);
    set("MPI_Reduce_scatter_block", reduce_scatter);
  }

  template <class Function>
  void set(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(find(name));
  }

  Lookup find;
  int (*init)(int*, char***);
  int (*finalize)();
  int (*comm_rank)(Handle, int*);
  int (*comm_size)(Handle, int*);
  int (*version)(char*, int*);
  int (*allreduce)(Send, Receive, int, Handle type, Handle op, Handle comm);
  int (*bcast)(Receive, int, Handle type, int root, Handle comm);
  int (*allgather)(Send, int, Handle, Receive, int, Handle, Handle comm);
  int (*alltoall)(Send, int, Handle, Receive, int, Handle, Handle comm);
  int (*reduce_scatter)(Send, Receive, int, Handle type, Handle op, Handle comm);
};

enum class Collective { allreduce, broadcast, allgather, alltoall, reduce_scatter };

Collective collective_named(const std::string& name) {
  if (name == "allreduce") return Collective::allreduce;
  if (name == "broadcast") return Collective::broadcast;
  if (name == "allgather") return Collective::allgather;
  if (name == "alltoall") return Collective::alltoall;
  if (name == "reduce_scatter") return Collective::reduce_scatter;
  throw Unsupported("MPI is not measured at " + name);
}

template <class Abi>
class MpiCall final : public Call {
 public:
  MpiCall(const Work& work, const Functions<Abi>& mpi, int ranks)
      : mpi_(mpi), collective_(collective_named(work.collective)), root_(work.root) {
    const MpiName type = mpi_type(work.dtype);
    if (type.symbol == nullptr) throw Unsupported("MPI has no " + work.message.text("dtype"));
    const MpiName op = mpi_op(work.op, work.dtype == rueda::DataType::boolean);
    if (op.symbol == nullptr) throw Unsupported("MPI has no " + work.message.text("op"));
    if (std::max(work.input_count, work.output_count) > INT_MAX)
      throw Unsupported("MPI counts with an int");
    type_ = Abi::handle(mpi.find, type);
    op_ = Abi::handle(mpi.find, op);
    world_ = Abi::world(mpi.find);
    input_ = private_memory(work.input_bytes());
    output_ = work.in_place ? input_ : private_memory(work.output_bytes());
    const auto parts = static_cast<std::size_t>(ranks);
    const bool whole = work.in_place || collective_ == Collective::allgather;
    const std::size_t count = collective_ == Collective::reduce_scatter ? work.output_count
                              : whole                                   ? work.input_count
                                                                        : work.input_count / parts;
    count_ = static_cast<int>(count);
  }

  void run() override {
    std::byte* const in = input_.get();
    std::byte* const out = output_.get();
    switch (collective_) {
      case Collective::allreduce:
        mpi_.allreduce(Abi::in_place(), out, count_, type_, op_, world_);
        return;
      case Collective::broadcast: mpi_.bcast(out, count_, type_, root_, world_); return;
      case Collective::allgather:
        mpi_.allgather(in, count_, type_, out, count_, type_, world_);
        return;
      case Collective::alltoall:
        mpi_.alltoall(in, count_, type_, out, count_, type_, world_);
        return;
      case Collective::reduce_scatter:
        mpi_.reduce_scatter(in, out, count_, type_, op_, world_);
        return;
    }
  }

 private:
  const Functions<Abi>& mpi_;
  Collective collective_;
  int root_;
  typename Abi::Handle type_;
  typename Abi::Handle op_;
  typename Abi::Handle world_;
  int count_;
};

template <class Abi>
class Mpi final : public Contender {
 public:
  explicit Mpi(const Lookup& lookup) : mpi_(lookup) {
    if (mpi_.init(nullptr, nullptr) != 0) throw std::runtime_error("MPI_Init failed");
    mpi_.comm_rank(Abi::world(mpi_.find), &rank_);
    mpi_.comm_size(Abi::world(mpi_.find), &size_);
  }
  ~Mpi() override { mpi_.finalize(); }
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  [[nodiscard]] std::map<std::string, std::string> facts() const override {
    std::string text(8192, '\0');  // MPI_MAX_LIBRARY_VERSION_STRING is at most this
    int length = 0;
    mpi_.version(text.data(), &length);
    text.resize(text.find_first_of(std::string_view("\n,\0", 3)));
    return {{"version", text}};
  }

  [[nodiscard]] std::unique_ptr<Call> prepare(const Work& work) override {
    return std::make_unique<MpiCall<Abi>>(work, mpi_, size_);
  }

 private:
  Functions<Abi> mpi_;
  int rank_ = 0;
  int size_ = 0;
};

}  // namespace

std::unique_ptr<Contender> make_mpi(const std::string& library) {
  const Lookup find = open_library(library);
  // MPI_Init may be called once only: which interface it is must be clear before.
  try {
    find("ompi_mpi_comm_world");
  } catch (const std::runtime_error&) {
    return std::make_unique<Mpi<MpichAbi>>(find);
  }
  return std::make_unique<Mpi<OpenMpiAbi>>(find);
}

}  // namespace rueda_bench
