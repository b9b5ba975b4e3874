# The kernels are compiled once for each instruction set of the architecture, each in a namespace of its own
# (RUEDA_KERNELS) and with the registers.h of its folder, and chosen at run time.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(architecture x86_64)
  set(instruction_sets baseline avx2 avx512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(architecture aarch64)
  set(instruction_sets neon)
else()
  message(FATAL_ERROR "No kernels for ${CMAKE_SYSTEM_PROCESSOR}: see csrc/reduce/kernels/")
endif()
set(flags_avx2 -mavx2 -mf16c)
set(flags_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl)

# The same bits on every CPU: no contraction of a*b+c. Nobody looks at floating-point exception flags, and
# without them operations may be computed before they are selected, which vectorising needs.
set(arithmetic -O3 -ffp-contract=off -fno-trapping-math)
target_sources(rueda_reduce PRIVATE ${CMAKE_CURRENT_LIST_DIR}/architecture/${architecture}.cpp)
target_compile_options(rueda_reduce PRIVATE ${arithmetic})

file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/kernels/*.cpp)
foreach(set IN LISTS instruction_sets)
  rueda_layer(kernels_${set} ${sources})
  target_include_directories(rueda_kernels_${set} PRIVATE ${CMAKE_CURRENT_LIST_DIR}/kernels/${set})
  target_compile_definitions(rueda_kernels_${set} PRIVATE RUEDA_KERNELS=${set})
  target_compile_options(rueda_kernels_${set} PRIVATE ${arithmetic} ${flags_${set}})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12 sees uninitialised values in its own intrinsics (GCC bug 105593).
    target_compile_options(rueda_kernels_${set} PRIVATE -Wno-maybe-uninitialized)
  endif()
endforeach()
