// All kernels, in one image.
#include "cuda/kernels/copy_batch.cu"
