# Headers that most files take, compiled once: a third of what a file costs. A set for libraries and binaries, and one for
# tests with GoogleTest's as well. Files include what they need all the same: -DTACC_PRECOMPILED_HEADERS=OFF builds without.
# What links LibTorch has flags of its own (-fopenmp), so its headers would have to be compiled once more; it goes without.
option(TACC_PRECOMPILED_HEADERS "compile the headers that most files take once" ON)

set(
  common_headers
  <algorithm>
  <array>
  <chrono>
  <cmath>
  <cstdint>
  <filesystem>
  <fstream>
  <functional>
  <map>
  <memory>
  <optional>
  <set>
  <sstream>
  <string>
  <thread>
  <utility>
  <variant>
  <vector>
  <absl/status/statusor.h>
  <absl/strings/match.h>
  <absl/strings/str_cat.h>
  <absl/strings/str_format.h>
  <absl/strings/str_join.h>
  <absl/strings/str_split.h>
  <absl/time/time.h>
)

function(tacc_headers name)
  cmake_parse_arguments(arg "" "" "HEADERS;DEPS" ${ARGN})
  file(WRITE ${CMAKE_BINARY_DIR}/${name}.cc "")
  add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/${name}.cc)
  target_link_libraries(${name} PRIVATE ${arg_DEPS})
  target_precompile_headers(${name} PRIVATE ${arg_HEADERS})
endfunction()

# Gives `target` a set of headers, once it is known what it links.
function(tacc_take_headers target headers)
  if(TACC_PRECOMPILED_HEADERS)
    cmake_language(
      EVAL CODE "cmake_language(DEFER DIRECTORY ${CMAKE_SOURCE_DIR} CALL tacc_take_headers_now ${target} ${headers})"
    )
  endif()
endfunction()
function(tacc_take_headers_now target headers)
  tacc_links_torch(${target} torch)
  if(NOT torch)
    set_target_properties(${target} PROPERTIES PRECOMPILE_HEADERS_REUSE_FROM ${headers})
    add_dependencies(${target} ${headers})
  endif()
endfunction()

if(TACC_PRECOMPILED_HEADERS)
  # ccache needs the first; the second some libraries ask for, and headers must be compiled alike.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess> $<$<COMPILE_LANGUAGE:CXX>:-pthread>)
  # Executables are compiled as libraries are, so that they can take the same headers.
  set(CMAKE_CXX_COMPILE_OPTIONS_PIE ${CMAKE_CXX_COMPILE_OPTIONS_PIC})
  tacc_headers(tacc_common_headers HEADERS ${common_headers} DEPS absl::statusor absl::str_format absl::time)
  tacc_headers(
    tacc_test_headers
    HEADERS ${common_headers} <gmock/gmock.h> <gtest/gtest.h>
    DEPS absl::statusor absl::str_format absl::time GTest::gmock
  )
  target_compile_options(tacc_test_headers PRIVATE ${TACC_TEST_OPTIONS})
endif()
