// Forward declarations of the driver's handles, so that passing them on needs no CUDA header.
#pragma once

// As declared in cuda.h.
struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;
struct CUmemPoolHandle_st;

namespace rueda {

using ContextHandle = CUctx_st*;
using StreamHandle = CUstream_st*;  // the same as the runtime's cudaStream_t
using EventHandle = CUevent_st*;
using ModuleHandle = CUmod_st*;
using FunctionHandle = CUfunc_st*;
using MemoryPoolHandle = CUmemPoolHandle_st*;

}  // namespace rueda
