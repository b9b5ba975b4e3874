// Trains a small convolutional network on handwritten digits, on any number of ranks.
//
//   python export_digits.py digits.bin
//   export rueda_DIR="$(python -m rueda --cmake-dir)"
//   export CMAKE_PREFIX_PATH="$(python -c 'import torch; print(torch.utils.cmake_prefix_path)')"
//   cmake -S . -B build && cmake --build build
//   mpirun -np 4 ./build/digits            # or: rueda run -np 4 ./build/digits
//
// digits [DIGITS [RESULT]]: DIGITS is digits.bin by default. With RESULT, each rank writes its
// parameters, as consecutive float32 values, to that path with ".RANK" appended.
#include <rueda/torch.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace rt = rueda::libtorch;
namespace nn = torch::nn;

namespace {

constexpr std::int64_t global_batch = 96;  // divisible by 1, 2, 3 and 4 ranks
constexpr std::int64_t tests = 360;        // the first digits of the file
constexpr int epochs = 15;

struct Digits {
  torch::Tensor images;  // (n, 1, 8, 8) in 0..1
  torch::Tensor labels;  // (n,)
};

Digits load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  if (bytes.empty() || bytes.size() % 65 != 0) {
    throw std::runtime_error(path + " is not what export_digits.py writes");
  }
  const auto count = static_cast<std::int64_t>(bytes.size() / 65);
  const auto records = torch::from_blob(bytes.data(), {count, 65}, torch::kByte);
  const auto images = records.slice(1, 0, 64).to(torch::kFloat) / 16;
  return {images.reshape({-1, 1, 8, 8}), records.select(1, 64).to(torch::kLong)};
}

nn::Sequential make_model() {  // smooth, so that training does not amplify rounding differences
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 16, 3).padding(1)), nn::GELU(),
                        nn::Conv2d(nn::Conv2dOptions(16, 32, 3).padding(1)), nn::GELU(),
                        nn::AvgPool2d(2), nn::Flatten(), nn::Linear(32 * 4 * 4, 64), nn::GELU(),
                        nn::Linear(64, 10));
}

double accuracy_of(nn::Sequential& model, const Digits& digits) {
  const torch::NoGradGuard no_grad;
  const auto right = model->forward(digits.images).argmax(1) == digits.labels;
  return right.to(torch::kDouble).mean().item<double>();
}

void save(const std::string& path, const nn::Sequential& model) {
  std::ofstream file(path, std::ios::binary);
  for (const torch::Tensor& parameter : model->parameters()) {
    const auto values = parameter.detach().contiguous();
    file.write(static_cast<const char*>(values.data_ptr()),
               static_cast<std::streamsize>(values.nbytes()));
  }
  if (!file) throw std::runtime_error("cannot write " + path);
}

void train(const std::string& data, const std::string& result) {
  rueda::init();
  const int rank = rueda::rank();
  const int size = rueda::size();
  torch::set_num_threads(1);  // enough for a network of this size
  const Digits digits = load(data);
  const Digits train{digits.images.slice(0, tests), digits.labels.slice(0, tests)};
  const Digits test{digits.images.slice(0, 0, tests), digits.labels.slice(0, 0, tests)};

  torch::manual_seed(rank);  // different on each rank, to show that the broadcast works
  nn::Sequential model = make_model();
  rt::broadcast_parameters(*model);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  rt::DistributedOptimizer optimizer(sgd, model->named_parameters());

  torch::manual_seed(1);  // the same on all ranks from here on, so that all shuffle alike
  const std::int64_t batches = train.labels.size(0) / global_batch;
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    const auto order = torch::randperm(train.labels.size(0), torch::kLong);
    torch::Tensor loss;
    for (std::int64_t i = 0; i < batches; ++i) {
      const auto batch =  // this rank's share
          order.slice(0, i * global_batch + rank, (i + 1) * global_batch, size);
      optimizer.zero_grad();
      loss = nn::functional::cross_entropy(model->forward(train.images.index_select(0, batch)),
                                           train.labels.index_select(0, batch));
      loss.backward();
      optimizer.step();
    }
    loss = rt::allreduce(loss);  // the average
    if (rank == 0) std::printf("epoch %2d  loss %.4f\n", epoch, loss.item<double>());
  }
  if (rank == 0) std::printf("test accuracy %.2f %%\n", 100 * accuracy_of(model, test));
  if (!result.empty()) save(result + "." + std::to_string(rank), model);
  rueda::shutdown();
}

}  // namespace

int main(int count, char** arguments) {
  try {
    train(count > 1 ? arguments[1] : "digits.bin", count > 2 ? arguments[2] : "");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    rueda::abort(error.what());  // so that the other ranks do not wait
    return 1;
  }
}
