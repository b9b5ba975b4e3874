// Loading NCCL, and mapping Rueda's types and operations to NCCL's.
#include "backend/nccl/library.h"
#include "backend/nccl/memory.h"
#include "unit/backend/nccl/nccl_fixture.h"

namespace rueda::test::nccl_library_test {
namespace {

Expected<const NcclLibrary*> load(const std::string& path) {
  Options options;
  options.nccl_library = path;
  return load_nccl(options);
}

std::string refusal(const std::string& path) {
  const auto library = load(path);
  if (library.ok()) return "loaded";
  CHECK(library.status().code() == ErrorCode::initialization);
  return library.status().message();
}

TEST_CASE("where there is no NCCL the error says what was tried and what to install") {
  CHECK_THAT(refusal("/nowhere/libnccl.so.2"),
             Catch::Contains("RUEDA_NCCL_LIBRARY: /nowhere/libnccl.so.2") &&
                 Catch::Contains("pip install nvidia-nccl-cu13"));
}

TEST_CASE("a folder is as good as the library in it") {
  const std::string file = RUEDA_NCCL_DOUBLE;
  const auto library = load(file.substr(0, file.rfind('/')));
  REQUIRE(library.ok());
  CHECK_THAT(library.value()->file(), Catch::Contains("libnccl.so.2"));
}

TEST_CASE("an NCCL that is too old is refused with both versions") {
  const NcclFixture fixture({.version = 22605});
  const std::string path = std::string(RUEDA_NCCL_DOUBLE).insert(0, "/.");
  CHECK_THAT(refusal(path), Catch::Contains("NCCL 2.26.5") && Catch::Contains("needs 2.27.0") &&
                                Catch::Contains("pip install -U nvidia-nccl-cu"));
  // A failure is not cached.
  nccl_double().reset({.version = 22700});
  CHECK(load(path).value()->version() == 22700);
}

TEST_CASE("a library that lacks functions is refused with their names") {
  CHECK_THAT(refusal(RUEDA_BROKEN_NCCL_DOUBLE), Catch::Contains("NCCL 2.27.3") &&
                                                    Catch::Contains("lacks ncclGetUniqueId") &&
                                                    Catch::Contains("ncclAllReduce"));
  CHECK_THAT(refusal("libm.so.6"), Catch::Contains("libm.so.6 is not NCCL"));
}

TEST_CASE("NCCL allocates memory") {
  const NcclFixture fixture;
  const auto* library = take(load_nccl(double_options()), "load_nccl");
  auto memory = take(NcclMemory::allocate({*library, CudaFixture::device(1)}, 64), "allocate");
  CHECK(memory.size() == 64);
  memory = take(NcclMemory::allocate({*library, CudaFixture::device(1)}, 0), "allocate");
  CHECK(memory.data() == nullptr);
}

TEST_CASE("an error tells its kind, the function and NCCL's own words") {
  const auto* library = take(load_nccl(double_options()), "load_nccl");
  CHECK(library->check(nccl::success, "f").ok());
  CHECK(library->check(nccl::in_progress, "f").ok());
  CHECK(library->check(nccl::invalid_usage, "f").code() == ErrorCode::invalid_argument);
  CHECK(library->check(nccl::remote_error, "f").code() == ErrorCode::peer_lost);
  CHECK(library->check(nccl::system_error, "f").code() == ErrorCode::transport);
  CHECK_THAT(library->check(nccl::system_error, "f").message(),
             Catch::StartsWith("f failed: unhandled system error"));
}

TEST_CASE("every supported operation on every type is reduced or refused by name") {
  for (const DataTypeInfo& type : data_types) {
    for (std::size_t op = 0; op < reduce_op_names.size(); ++op) {
      CAPTURE(type.name, reduce_op_names[op]);
      const auto reduction = nccl_reduction(static_cast<ReduceOp>(op), type.id);
      if (reduction.ok()) {
        CHECK(is_supported(static_cast<ReduceOp>(op), type.id));
        continue;
      }
      CHECK(reduction.status().code() == ErrorCode::unsupported);
      CHECK_THAT(reduction.status().message(), Catch::Contains(std::string(type.name)));
    }
  }
  const auto is = [](ReduceOp op, DataType dtype) { return nccl_reduction(op, dtype).ok(); };
  CHECK(is(ReduceOp::sum, DataType::complex128));
  CHECK(is(ReduceOp::sum, DataType::boolean));
  CHECK_FALSE(is(ReduceOp::average, DataType::float32));  // is a sum and a factor
  CHECK_FALSE(is(ReduceOp::product, DataType::complex64));
  CHECK_FALSE(is(ReduceOp::bit_and, DataType::int32));
  CHECK_FALSE(is(ReduceOp::sum, DataType::int16));
}

}  // namespace
}  // namespace rueda::test::nccl_library_test
