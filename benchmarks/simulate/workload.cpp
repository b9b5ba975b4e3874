#include "workload.h"

#include <algorithm>
#include <array>

#include "core/strings.h"

namespace rueda::simulate {

namespace {

// Weight and bias of a batch normalisation.
void add_norm(std::vector<Tensor>& tensors, const std::string& name, std::int64_t channels) {
  tensors.push_back({name + ".weight", channels});
  tensors.push_back({name + ".bias", channels});
}

// Three convolutions, of which the first block of a stage has another for what skips them.
void add_bottleneck(std::vector<Tensor>& tensors, const std::string& name, std::int64_t input,
                    std::int64_t width, bool is_first) {
  const std::int64_t output = 4 * width;
  tensors.push_back({name + ".conv1.weight", input * width});
  add_norm(tensors, name + ".bn1", width);
  tensors.push_back({name + ".conv2.weight", width * width * 9});
  add_norm(tensors, name + ".bn2", width);
  tensors.push_back({name + ".conv3.weight", width * output});
  add_norm(tensors, name + ".bn3", output);
  if (!is_first) return;
  tensors.push_back({name + ".downsample.0.weight", input * output});
  add_norm(tensors, name + ".downsample.1", output);
}

}  // namespace

std::vector<Tensor> resnet50() {
  std::vector<Tensor> tensors{{"conv1.weight", std::int64_t{64} * 3 * 49}};
  add_norm(tensors, "bn1", 64);
  constexpr std::array blocks{3, 4, 6, 3};
  std::int64_t input = 64;
  for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
    const std::int64_t width = std::int64_t{64} << stage;
    for (int block = 0; block < blocks[stage]; ++block) {
      add_bottleneck(tensors, str("layer", stage + 1, ".", block), input, width, block == 0);
      input = 4 * width;
    }
  }
  tensors.push_back({"fc.weight", std::int64_t{2048} * 1000});
  tensors.push_back({"fc.bias", 1000});
  std::reverse(tensors.begin(), tensors.end());
  return tensors;
}

std::vector<double> ready_times(const std::vector<Tensor>& tensors, double backward) {
  double all = 0;
  for (const Tensor& tensor : tensors) all += static_cast<double>(tensor.elements);
  std::vector<double> times;
  double done = 0;
  for (const Tensor& tensor : tensors) {
    done += static_cast<double>(tensor.elements);
    times.push_back(backward * 1e9 * done / all);
  }
  return times;
}

}  // namespace rueda::simulate
