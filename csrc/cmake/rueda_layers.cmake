# One object library per layer of csrc/, in the order in which layers may include one another.
find_package(Threads REQUIRED)

add_library(rueda_flags INTERFACE)
target_compile_options(rueda_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
                                             -Wno-sign-conversion -Wnon-virtual-dtor)
# Nobody replaces a function of the library by another of the same name, so it may be put in line.
target_compile_options(rueda_flags INTERFACE -fno-semantic-interposition)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 sees overlapping copies in std::string's operator+ where there are none (GCC bug 105651).
  target_compile_options(rueda_flags INTERFACE -Wno-restrict)
endif()
if(RUEDA_WARNINGS_AS_ERRORS)
  target_compile_options(rueda_flags INTERFACE -Werror)
endif()
if(RUEDA_SANITIZER)
  target_compile_options(rueda_flags INTERFACE -fsanitize=${RUEDA_SANITIZER} -fno-sanitize-recover=all
                                               -fno-omit-frame-pointer -g1)
  target_link_options(rueda_flags INTERFACE -fsanitize=${RUEDA_SANITIZER})
  if(RUEDA_SANITIZER MATCHES "undefined" AND NOT RUEDA_FUZZ)
    # What goes wrong there, AddressSanitizer sees as well: a pointer that is used though it is null, out of bounds or
    # of an object that is gone. Checked a second time, it is most of the code that is to be compiled.
    target_compile_options(rueda_flags INTERFACE -fno-sanitize=null,object-size,vptr,pointer-overflow)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # With its checks inserted, GCC believes that parts of std::function and std::regex are read unset.
    target_compile_options(rueda_flags INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()
target_include_directories(rueda_flags INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/csrc)
target_compile_definitions(rueda_flags INTERFACE RUEDA_VERSION="${PROJECT_VERSION}")
target_link_libraries(rueda_flags INTERFACE Threads::Threads ${CMAKE_DL_LIBS})

# Several sources at a time: most of a small file's time goes into the headers that all of them include.
# Under a sanitizer more of them, since nobody changes one file there and builds again.
function(rueda_compile_together target)
  set(batch 8)
  if(RUEDA_SANITIZER)
    set(batch 32)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${RUEDA_UNITY} UNITY_BUILD_BATCH_SIZE ${batch})
  if(RUEDA_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC takes for a header, whose types all would see, what is included here.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

function(rueda_layer name)
  add_library(rueda_${name} OBJECT ${ARGN})
  target_link_libraries(rueda_${name} PRIVATE rueda_flags)
  rueda_compile_together(rueda_${name})
  set_property(GLOBAL APPEND PROPERTY RUEDA_LAYER_OBJECTS $<TARGET_OBJECTS:rueda_${name}>)
endfunction()
