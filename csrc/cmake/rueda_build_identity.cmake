# As a script: writes a source file with the hash of FILES, separated by '|', to OUTPUT.
if(CMAKE_SCRIPT_MODE_FILE)
  string(REPLACE "|" ";" files "${FILES}")
  set(all "")
  foreach(file IN LISTS files)
    file(SHA256 ${file} hash)
    string(APPEND all "${hash}\n")
  endforeach()
  string(SHA256 identity "${all}")
  file(WRITE ${OUTPUT}
       "#include \"membership/world_facts.h\"\n\n"
       "namespace rueda {\n\n"
       "std::string_view build_identity() {\n  return \"${identity}\";\n}\n\n"
       "}  // namespace rueda\n")
  return()
endif()

# Adds the definition of build_identity() to a target: a hash of all sources of the library, its public headers
# included. Ranks are compared by it, since what they share in memory has the layout that their sources give it.
function(rueda_build_identity target)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.h ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/bindings/")
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/rueda/*.h)
  list(APPEND sources ${headers})
  list(SORT sources)
  list(JOIN sources "|" joined)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/build_identity.cpp)
  set(script ${CMAKE_CURRENT_SOURCE_DIR}/cmake/rueda_build_identity.cmake)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} "-DFILES=${joined}" -DOUTPUT=${output} -P ${script}
    DEPENDS ${sources} ${script}
    COMMENT "Hashing the sources"
    VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
