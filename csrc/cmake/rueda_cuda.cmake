# Finds what the GPU parts are built with; nothing of it is linked, the driver is loaded at run time.
#   RUEDA_CUDA_FOUND      whether cuda.h was found: without it GPUs are not served
#   RUEDA_CUDA_INCLUDE    its folder
#   RUEDA_NVCC_FOUND      whether the kernels can be compiled
#
# A CUDA toolkit (CUDAToolkit_ROOT, CUDA_PATH, nvcc on the PATH, /usr/local/cuda) comes first, then PyPI's wheels
# (nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-runtime, nvidia-cuda-crt) in the Python environment that runs the build.
set(RUEDA_CUDA AUTO CACHE STRING "Serve GPUs: AUTO (when cuda.h is found), ON or OFF")
set(RUEDA_CUDA_ARCHITECTURES "80;90;100" CACHE STRING "What the kernels are compiled for; PTX of the last one too")
set(RUEDA_CUDA_FOUND FALSE)
set(RUEDA_NVCC_FOUND FALSE)
set(RUEDA_OLDEST_NVCC 12.8)  # knows sm_100

if(NOT RUEDA_CUDA STREQUAL "OFF")
  set(wheels "")
  set(environments "$ENV{VIRTUAL_ENV}" "$ENV{CONDA_PREFIX}")
  if(DEFINED Python_EXECUTABLE)
    get_filename_component(python_bin ${Python_EXECUTABLE} DIRECTORY)
    get_filename_component(python_prefix ${python_bin} DIRECTORY)
    list(APPEND environments ${python_prefix})
  endif()
  foreach(environment IN LISTS environments)
    if(environment)
      file(GLOB found "${environment}/lib/python3*/site-packages/nvidia/cu1[2-9]"
                      "${environment}/lib/python3*/site-packages/nvidia/cuda_nvcc")
      list(APPEND wheels ${found})
    endif()
  endforeach()
  set(roots "${CUDAToolkit_ROOT}" "$ENV{CUDA_PATH}" "$ENV{CUDA_HOME}")
  find_program(RUEDA_NVCC nvcc HINTS ${roots} PATHS /usr/local/cuda PATH_SUFFIXES bin DOC "The CUDA compiler")
  find_program(RUEDA_NVCC nvcc PATHS ${wheels} PATH_SUFFIXES bin NO_DEFAULT_PATH)
  if(RUEDA_NVCC)
    # What the PATH has may be a script that calls the compiler elsewhere: it says itself where it is.
    execute_process(COMMAND ${RUEDA_NVCC} --dryrun -x cu /dev/null -o /dev/null ERROR_VARIABLE nvcc_says
                    OUTPUT_QUIET RESULT_VARIABLE nvcc_failed)
    if(NOT nvcc_failed AND nvcc_says MATCHES "#\\$ TOP=([^\n]+)")
      get_filename_component(nvcc_root "${CMAKE_MATCH_1}" ABSOLUTE)
      list(APPEND roots ${nvcc_root})
    endif()
    execute_process(COMMAND ${RUEDA_NVCC} --version OUTPUT_VARIABLE nvcc_says ERROR_QUIET)
    if(nvcc_says MATCHES "release ([0-9]+\\.[0-9]+)")
      set(RUEDA_NVCC_VERSION ${CMAKE_MATCH_1})
    endif()
  endif()
  find_path(RUEDA_CUDA_INCLUDE cuda.h HINTS ${roots} PATHS /usr/local/cuda ${wheels}
            PATH_SUFFIXES include targets/x86_64-linux/include targets/sbsa-linux/include NO_DEFAULT_PATH)
  if(RUEDA_CUDA_INCLUDE)
    set(RUEDA_CUDA_FOUND TRUE)
    if(RUEDA_NVCC AND RUEDA_NVCC_VERSION VERSION_GREATER_EQUAL RUEDA_OLDEST_NVCC)
      set(RUEDA_NVCC_FOUND TRUE)
    elseif(RUEDA_NVCC)
      message(STATUS "${RUEDA_NVCC} is ${RUEDA_NVCC_VERSION}: the kernels need ${RUEDA_OLDEST_NVCC} or newer")
    endif()
  elseif(RUEDA_CUDA STREQUAL "ON")
    message(FATAL_ERROR "RUEDA_CUDA=ON, but no cuda.h was found: give CUDAToolkit_ROOT=/path/to/cuda")
  endif()
endif()
if(RUEDA_NVCC_FOUND)
  message(STATUS "GPUs: ${RUEDA_CUDA_INCLUDE}, kernels by nvcc ${RUEDA_NVCC_VERSION}")
elseif(RUEDA_CUDA_FOUND)
  message(STATUS "GPUs: ${RUEDA_CUDA_INCLUDE}, no kernels (no nvcc)")
else()
  message(STATUS "GPUs: not served (no cuda.h)")
endif()

# Compiles the kernels into one image and sets `out` to the source that embeds it.
function(rueda_kernel_image folder out)
  set(image ${PROJECT_BINARY_DIR}/cuda/kernels.fatbin)
  set(source ${PROJECT_BINARY_DIR}/cuda/kernel_image.cpp)
  set(targets "")
  set(names "")
  foreach(architecture IN LISTS RUEDA_CUDA_ARCHITECTURES)
    list(APPEND targets -gencode arch=compute_${architecture},code=sm_${architecture})
    list(APPEND names sm_${architecture})
  endforeach()
  list(GET RUEDA_CUDA_ARCHITECTURES -1 newest)
  list(APPEND targets -gencode arch=compute_${newest},code=compute_${newest})
  list(JOIN names ", " names)
  file(GLOB kernels CONFIGURE_DEPENDS ${folder}/*.cu ${folder}/*.h ${folder}/nvcc/*.h)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/cuda)
  add_custom_command(
    OUTPUT ${image}
    COMMAND ${RUEDA_NVCC} -ccbin ${CMAKE_CXX_COMPILER} -std=c++17 -O3 --expt-relaxed-constexpr -Werror all-warnings
            -I${PROJECT_SOURCE_DIR}/csrc -I${folder}/nvcc -I${RUEDA_CUDA_INCLUDE} ${targets} -Xfatbin=-compress-all
            -fatbin -o ${image} ${folder}/all.cu
    DEPENDS ${kernels} COMMENT "Compiling the CUDA kernels for ${names}" VERBATIM)
  set(RUEDA_KERNEL_IMAGE ${image})
  set(RUEDA_KERNEL_ORIGIN "nvcc ${RUEDA_NVCC_VERSION} for ${names}")
  configure_file(${folder}/../kernel_image.cpp.in ${source} @ONLY)
  # By itself: nothing else is to wait for nvcc.
  set_source_files_properties(${source} PROPERTIES OBJECT_DEPENDS ${image} SKIP_UNITY_BUILD_INCLUSION ON)
  set(${out} ${source} PARENT_SCOPE)
endfunction()

# Leaves in `list` what is built of csrc/cuda: all of it, or what stands in for what cannot be.
function(rueda_choose_cuda_sources list)
  set(sources ${${list}})
  set(folder ${PROJECT_SOURCE_DIR}/csrc/cuda)
  if(NOT RUEDA_CUDA_FOUND)
    set(sources ${folder}/no_cuda.cpp)
  else()
    list(REMOVE_ITEM sources ${folder}/no_cuda.cpp)
    if(RUEDA_NVCC_FOUND)
      list(REMOVE_ITEM sources ${folder}/no_kernel_image.cpp)
      rueda_kernel_image(${folder}/kernels image)
      list(APPEND sources ${image})
    endif()
  endif()
  set(${list} ${sources} PARENT_SCOPE)
endfunction()
