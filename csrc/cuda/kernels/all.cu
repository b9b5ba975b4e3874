// All kernels, in one image.
#include "cuda/kernels/check_finite.cu"
#include "cuda/kernels/copy_batch.cu"
#include "cuda/kernels/quantize.cu"
