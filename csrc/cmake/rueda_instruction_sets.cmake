# Kernels are compiled once for each instruction set of the architecture and chosen at run time.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(RUEDA_ARCHITECTURE x86_64)
  set(RUEDA_INSTRUCTION_SETS baseline avx2 avx512)
  if(RUEDA_BASELINE_ONLY)
    set(RUEDA_INSTRUCTION_SETS baseline)
  endif()
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(RUEDA_ARCHITECTURE aarch64)
  set(RUEDA_INSTRUCTION_SETS neon)
else()
  message(FATAL_ERROR "No kernels for ${CMAKE_SYSTEM_PROCESSOR}: see csrc/reduce/kernels/")
endif()

# The same bits on every CPU: no contraction of a*b+c. Nobody looks at floating-point exception flags, and
# without them operations may be computed before they are selected, which vectorising needs.
set(RUEDA_ARITHMETIC_FLAGS -ffp-contract=off -fno-trapping-math)
if(NOT RUEDA_SANITIZER)  # they look at each access by itself, and GCC takes minutes to vectorise that
  list(PREPEND RUEDA_ARITHMETIC_FLAGS -O3)
endif()

# Each in a namespace of its own, RUEDA_KERNELS, and with the registers.h of its folder.
function(rueda_compile_for instruction_set target)
  set(flags_avx2 -mavx2 -mf16c)
  set(flags_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/csrc/reduce/kernels/${instruction_set})
  target_compile_definitions(${target} PRIVATE RUEDA_KERNELS=${instruction_set})
  target_compile_options(${target} PRIVATE ${RUEDA_ARITHMETIC_FLAGS} ${flags_${instruction_set}})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12 sees uninitialised values in its own intrinsics (GCC bug 105593).
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
  endif()
endfunction()
