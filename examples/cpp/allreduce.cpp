// Sums a vector over all ranks.
//
//   mpirun -np 3 ./build/examples/allreduce
#include <rueda/rueda.h>

#include <cstdio>
#include <vector>

int main() {
  try {
    rueda::init();
    std::vector<float> values(1000, static_cast<float>(rueda::rank() + 1));
    const rueda::TensorView view{values.data(), {1000}, rueda::DataType::float32};
    rueda::allreduce(view, values.data(), {.name = "values", .op = rueda::ReduceOp::sum}).wait();

    const int size = rueda::size();
    const auto expected = static_cast<float>(size * (size + 1) / 2);
    const bool right = values == std::vector<float>(values.size(), expected);
    std::printf("rank %d of %d: sum %g, %s\n", rueda::rank(), size, values.front(),
                right ? "as expected" : "WRONG");
    rueda::shutdown();
    return right ? 0 : 1;
  } catch (const rueda::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
