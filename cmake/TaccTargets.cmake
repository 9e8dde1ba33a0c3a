# tacc_library(name SRCS a.cc ... DEPS target ...)   a library; unit tests beside the code are added by tacc_test.
# tacc_unity(target...)                              compiles a target's files in batches: where most of the time goes into
#                                                    headers that every file takes (JSON, gRPC, protos).
# tacc_binary(name SRCS ... DEPS ...)                an executable in the build folder.
# tacc_test(name SRCS ... DEPS ... [TIMEOUT s])      a GoogleTest program, registered with CTest.
# tacc_pytest(name FILE f.py [TIMEOUT s] [LABELS l]) a pytest file run by the .venv's Python, registered with CTest.
function(tacc_library name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${arg_SRCS})
  target_link_libraries(${name} PUBLIC ${arg_DEPS})
endfunction()

function(tacc_unity)
  foreach(target ${ARGV})
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 10)
    # Files with an anonymous namespace are included here, but by one file only.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endforeach()
endfunction()

function(tacc_binary name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${arg_SRCS})
  target_link_libraries(${name} PRIVATE ${arg_DEPS})
endfunction()

function(tacc_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SRCS;DEPS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${name} ${arg_SRCS})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} GTest::gtest GTest::gtest_main GTest::gmock)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} ENVIRONMENT "TACC_BUILD=${CMAKE_BINARY_DIR}")
endfunction()

function(tacc_pytest name)
  cmake_parse_arguments(arg "" "FILE;TIMEOUT;LABELS" "" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  add_test(NAME ${name}
           COMMAND ${CMAKE_SOURCE_DIR}/.venv/bin/python -m pytest -q -p no:cacheprovider ${CMAKE_CURRENT_SOURCE_DIR}/${arg_FILE}
           WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT}
                       ENVIRONMENT "TACC_BUILD=${CMAKE_BINARY_DIR};PYTHONPATH=${CMAKE_SOURCE_DIR}/client/python;PYTHONDONTWRITEBYTECODE=1" LABELS "${arg_LABELS}")
endfunction()
