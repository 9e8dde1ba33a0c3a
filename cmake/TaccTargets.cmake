# tacc_library(name SRCS a.cc ... DEPS target ...)
#   A library; unit tests beside the code are added by tacc_test.
# tacc_unity(target...)
#   Compiles a target's files in batches: where most of the time goes into headers that every file takes (JSON, gRPC,
#   protos).
# tacc_binary(name SRCS ... DEPS ... [FAILPOINTS] [NEXT])
#   An executable in the build folder. With FAILPOINTS it ignores TACC_FAILPOINTS, and failpoints/NAME, for tests, obeys.
#   With NEXT there is next/NAME, for tests of upgrades, which says that it is of another version.
# tacc_test(name SRCS ... DEPS ... [TIMEOUT s])
#   A GoogleTest program, registered with CTest.
# tacc_test_run(name PROGRAM p [ARGS a ...] [TIMEOUT s])
#   A run of a GoogleTest program, registered with CTest.
# tacc_pytest(name FILE f.py [TIMEOUT s] [LABELS l])
#   A pytest file run by the .venv's Python, registered with CTest.
function(tacc_library name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${arg_SRCS})
  target_link_libraries(${name} PUBLIC ${arg_DEPS})
  tacc_take_headers(${name} tacc_common_headers)
endfunction()

function(tacc_unity)
  foreach(target ${ARGV})
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 10)
    # Files with an anonymous namespace are included here, but by one file only.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endforeach()
endfunction()

function(tacc_binary name)
  cmake_parse_arguments(arg "FAILPOINTS;NEXT" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${arg_SRCS})
  target_link_libraries(${name} PRIVATE ${arg_DEPS})
  target_compile_definitions(${name} PRIVATE TACC_VERSION="${PROJECT_VERSION}")
  tacc_take_headers(${name} tacc_common_headers)
  if(arg_FAILPOINTS)
    target_link_libraries(${name} PRIVATE tacc_failpoint_ignored)
    add_executable(${name}-failpoints $<TARGET_OBJECTS:${name}>)
    target_link_libraries(${name}-failpoints PRIVATE ${arg_DEPS} tacc_failpoint_obeyed)
    set_target_properties(
      ${name}-failpoints
      PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/failpoints OUTPUT_NAME ${name}
    )
  endif()
  if(arg_NEXT)
    add_executable(${name}-next ${arg_SRCS})
    target_link_libraries(${name}-next PRIVATE ${arg_DEPS})
    if(arg_FAILPOINTS)
      target_link_libraries(${name}-next PRIVATE tacc_failpoint_ignored)
    endif()
    target_compile_definitions(${name}-next PRIVATE TACC_VERSION="${PROJECT_VERSION}-next")
    set_target_properties(${name}-next PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/next OUTPUT_NAME ${name})
  endif()
endfunction()

# Tests are compiled with less effort: they are half of a build, and wait for what they test. (GoogleTest's macros are
# an else of their own.)
set(TACC_TEST_OPTIONS -O0 -Wno-dangling-else)

# What may take long is started first. A test leaves a report (JUnit XML), from which `make test` lists what was skipped;
# one that skips all of its cases ends with 77.
set(TACC_TEST_RESULTS ${CMAKE_BINARY_DIR}/test_results)
set(TACC_TEST_SKIPPED 77)

function(tacc_test_run name)
  cmake_parse_arguments(arg "" "PROGRAM;TIMEOUT" "ARGS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_test(
    NAME ${name}
    COMMAND ${arg_PROGRAM} ${arg_ARGS} --gtest_output=xml:${TACC_TEST_RESULTS}/${name}.xml
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
  )
  set_tests_properties(
    ${name}
    PROPERTIES
      TIMEOUT ${arg_TIMEOUT}
      COST ${arg_TIMEOUT}
      SKIP_RETURN_CODE ${TACC_TEST_SKIPPED}
      ENVIRONMENT "TACC_BUILD=${CMAKE_BINARY_DIR};TACC_TABLES=${CMAKE_BINARY_DIR}/matrix"
  )
endfunction()

function(tacc_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${arg_SRCS})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} tacc_gtest_main)
  target_compile_options(${name} PRIVATE ${TACC_TEST_OPTIONS})
  tacc_take_headers(${name} tacc_test_headers)
  tacc_tell_sanitizer(${name})
  set_property(GLOBAL APPEND PROPERTY TACC_TEST_PROGRAMS ${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  tacc_test_run(${name} PROGRAM ${name} TIMEOUT ${arg_TIMEOUT})
  # For `make retest`, which takes what their strings name for the test's inputs.
  set(sources "")
  foreach(source IN LISTS arg_SRCS)
    cmake_path(ABSOLUTE_PATH source)
    list(APPEND sources ${source})
  endforeach()
  list(JOIN sources ":" sources)
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "TACC_SOURCES=${sources}")
endfunction()

# With one thread for PyTorch: models are tiny, and tests run beside each other.
function(tacc_pytest name)
  cmake_parse_arguments(arg "" "FILE;TIMEOUT;LABELS" "" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  add_test(
    NAME ${name}
    COMMAND
      ${CMAKE_SOURCE_DIR}/.venv/bin/python -m pytest -q -p no:cacheprovider -p all_skipped
      --junitxml=${TACC_TEST_RESULTS}/${name}.xml ${CMAKE_CURRENT_SOURCE_DIR}/${arg_FILE}
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
  )
  set_tests_properties(
    ${name}
    PROPERTIES
      TIMEOUT ${arg_TIMEOUT}
      COST ${arg_TIMEOUT}
      SKIP_RETURN_CODE ${TACC_TEST_SKIPPED}
      LABELS "${arg_LABELS}"
      ENVIRONMENT
        "TACC_BUILD=${CMAKE_BINARY_DIR};PYTHONPATH=${CMAKE_SOURCE_DIR}/client/python:${CMAKE_SOURCE_DIR}/tests/skips;PYTHONDONTWRITEBYTECODE=1;OMP_NUM_THREADS=1"
  )
endfunction()
