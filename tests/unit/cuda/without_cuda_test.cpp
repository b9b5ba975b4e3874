// The stand-in for the GPU parts when built without cuda.h or nvcc. This executable links it in
// place of the library's.
#include <catch2/catch.hpp>

#include "cuda/driver.h"
#include "cuda/kernel_image.h"

namespace rueda::test::without_cuda_test {
namespace {

TEST_CASE("without cuda.h there is no driver, and the reason") {
  const auto driver = load_cuda(Options());
  REQUIRE_FALSE(driver.ok());
  CHECK(driver.status().code() == ErrorCode::initialization);
  CHECK_THAT(driver.status().message(), Catch::Contains("Rueda was built without CUDA"));
}

TEST_CASE("without nvcc there are no kernels") {
  CHECK(kernel_image().empty());
  CHECK(kernel_image_origin().empty());
}

}  // namespace
}  // namespace rueda::test::without_cuda_test
