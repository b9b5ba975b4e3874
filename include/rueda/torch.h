// Rueda for C++ programs that use LibTorch. Header-only: Rueda's library itself does not depend on
// torch, and this header compiles against the LibTorch that the program uses.
//
//   #include <rueda/torch.h>
//   namespace rt = rueda::libtorch;
//
//   rueda::init();
//   rt::broadcast_parameters(*model);
//   torch::optim::SGD sgd(model->parameters(), 0.1);
//   rt::DistributedOptimizer optimizer(sgd, model->named_parameters());
//   for (...) {
//     optimizer.zero_grad();
//     torch::nll_loss(model->forward(x), y).backward();  // gradients are reduced meanwhile
//     optimizer.step();                                  // with the average over all ranks
//   }
//   torch::Tensor total = rt::allreduce(correct, {.op = rueda::ReduceOp::sum});
//   torch::Tensor all = rt::autograd::allgather(features);  // with gradients
//
// The namespace is not called rueda::torch, because `torch::Tensor` would then be ambiguous after
// `using namespace rueda`. Everything else (rank(), process sets, errors) is in rueda/rueda.h.
#pragma once

#include "rueda/rueda.h"
#include "rueda/torch/autograd.h"
#include "rueda/torch/collectives.h"
#include "rueda/torch/compression.h"
#include "rueda/torch/memory.h"
#include "rueda/torch/optimizer.h"
#include "rueda/torch/state.h"
#include "rueda/torch/tensor_handle.h"
