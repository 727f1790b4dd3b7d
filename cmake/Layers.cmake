# A layer is a CMake target that sees the headers of the layers it links and no others. Each layer's
# folder is linked under build/layers/<layer>/, and only that directory is on the include path of
# those who link the layer: `#include "vfio/pci_device.h"` does not compile in fabric/, because
# fabric/ does not link vfio. Paths in #include start at the top of the repository, except those of
# include/, which start below it ("base/...", "gpuumd/...").

set(GPUUMD_WARNINGS -Wall -Wextra -Werror -Wmissing-declarations -Wnon-virtual-dtor)

# Most of a build from nothing is parsing headers of libraries. With this they are parsed once for
# all; off where one develops, because a source then compiles without an #include that it needs.
option(GPUUMD_PRECOMPILED "Precompile the headers of the standard library and of GoogleTest" OFF)
if(GPUUMD_PRECOMPILED)
  set(standard_headers
    <algorithm> <array> <atomic> <bit> <cassert> <cerrno> <charconv> <chrono> <cstddef> <cstdint>
    <cstring> <deque> <expected> <functional> <list> <map> <memory> <mutex> <optional> <set> <span>
    <string> <string_view> <thread> <unordered_map> <utility> <variant> <vector>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # From a precompiled header GCC 12 warns of the standard library's own code, as if it were ours.
    list(APPEND GPUUMD_WARNINGS -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow
      -Wno-stringop-overread -Wno-maybe-uninitialized)
    # For ccache, here and below: what a precompiled header was made of, and not when.
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  else()
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>")
  endif()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled.cc CONTENT "")
  add_library(gpuumd_precompiled OBJECT ${CMAKE_BINARY_DIR}/precompiled.cc)
  target_precompile_headers(gpuumd_precompiled PRIVATE ${standard_headers})
  # The sources of a program are compiled otherwise (PIE, not PIC), so it is a program too.
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled_tests.cc CONTENT "int main() {}\n")
  add_executable(gpuumd_precompiled_tests EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/precompiled_tests.cc)
  find_package(GTest REQUIRED)
  # The libraries' headers bring some of the kernel's: those of this version, for all.
  target_link_libraries(gpuumd_precompiled PRIVATE kernel_headers)
  target_link_libraries(gpuumd_precompiled_tests PRIVATE GTest::gmock kernel_headers)
  target_precompile_headers(gpuumd_precompiled_tests PRIVATE
    ${standard_headers} <gmock/gmock.h> <gtest/gtest.h>)
endif()

# gpuumd_quicken(target from): the target's sources use the precompiled headers of `from`, if there are any.
function(gpuumd_quicken target from)
  if(GPUUMD_PRECOMPILED)
    target_precompile_headers(${target} REUSE_FROM ${from})
  endif()
endfunction()

# gpuumd_layer_includes(target scope folder...): gives the target the include paths of folders.
function(gpuumd_layer_includes target scope)
  set(root ${CMAKE_BINARY_DIR}/layers/${target})
  foreach(folder ${ARGN})
    string(REGEX REPLACE "^include/" "" shown ${folder})
    get_filename_component(parent ${root}/${shown} DIRECTORY)
    file(MAKE_DIRECTORY ${parent})
    file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${folder} ${root}/${shown} SYMBOLIC)
  endforeach()
  target_include_directories(${target} ${scope} ${root})
endfunction()

# gpuumd_layer(name FOLDER folder [SUBFOLDERS ...] [SOURCES ...] [LINKS ...] [PRIVATE_LINKS ...])
# Without SOURCES the layer is headers only. SUBFOLDERS of the folder that belong to the same layer.
function(gpuumd_layer name)
  cmake_parse_arguments(arg "" "FOLDER" "SUBFOLDERS;SOURCES;LINKS;PRIVATE_LINKS" ${ARGN})
  if(arg_SOURCES)
    add_library(${name} STATIC ${arg_SOURCES})
    target_compile_options(${name} PRIVATE ${GPUUMD_WARNINGS})
    target_link_libraries(${name} PUBLIC ${arg_LINKS} PRIVATE ${arg_PRIVATE_LINKS})
    gpuumd_quicken(${name} gpuumd_precompiled)
    gpuumd_layer_includes(${name} PUBLIC ${arg_FOLDER})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${arg_LINKS})
    gpuumd_layer_includes(${name} INTERFACE ${arg_FOLDER})
  endif()
  list(TRANSFORM arg_SUBFOLDERS PREPEND ${arg_FOLDER}/)
  gpuumd_check_headers(${name} ${arg_FOLDER} ${arg_SUBFOLDERS})
endfunction()

# Each header compiles alone: one translation unit a header, built with the layer's own links.
function(gpuumd_check_headers layer)
  set(patterns ${ARGN})
  list(TRANSFORM patterns REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/\\1/*.h;${CMAKE_SOURCE_DIR}/\\1/*.hpp")
  file(GLOB headers CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR} ${patterns})
  set(units)
  foreach(header ${headers})
    string(REGEX REPLACE "^include/" "" shown ${header})
    string(MAKE_C_IDENTIFIER ${shown} unit)
    set(file ${CMAKE_BINARY_DIR}/headers/${layer}/${unit}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "#include \"${shown}\"\n#include \"${shown}\"\n")
    list(APPEND units ${file})
  endforeach()
  if(units)
    add_library(${layer}_headers OBJECT EXCLUDE_FROM_ALL ${units})
    target_compile_options(${layer}_headers PRIVATE ${GPUUMD_WARNINGS})
    target_link_libraries(${layer}_headers PRIVATE ${layer})
    if(NOT TARGET check_headers)
      add_custom_target(check_headers)
    endif()
    add_dependencies(check_headers ${layer}_headers)
  endif()
endfunction()

# gpuumd_program(name SOURCES ... LINKS ...): an executable.
function(gpuumd_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINKS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_compile_options(${name} PRIVATE ${GPUUMD_WARNINGS})
  target_link_libraries(${name} PRIVATE ${arg_LINKS})
endfunction()

# gpuumd_test(name SOURCES ... LINKS ... [LABELS threads|whole ...] [TIMEOUT seconds]):
# one GoogleTest program and one ctest entry. Label "threads" puts it into the ThreadSanitizer run,
# which builds the target thread_tests.
function(gpuumd_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LINKS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  find_package(GTest REQUIRED)
  add_executable(${name} ${arg_SOURCES})
  target_compile_options(${name} PRIVATE ${GPUUMD_WARNINGS})
  target_link_libraries(${name} PRIVATE ${arg_LINKS} GTest::gmock GTest::gtest_main Threads::Threads)
  gpuumd_quicken(${name} gpuumd_precompiled_tests)
  add_test(NAME ${name} COMMAND ${name})
  if(threads IN_LIST arg_LABELS)
    if(NOT TARGET thread_tests)
      add_custom_target(thread_tests)
    endif()
    add_dependencies(thread_tests ${name})
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}"
    ENVIRONMENT "GPUUMD_BIN=${CMAKE_BINARY_DIR}/bin;GPUUMD_SOURCE=${CMAKE_SOURCE_DIR}")
endfunction()
