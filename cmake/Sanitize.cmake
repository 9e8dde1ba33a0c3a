# TACC_SANITIZE=address,undefined or =thread instruments this build; scripts/sanitize makes and runs such builds.
#   tacc_gather_sanitized_tests()  a target, sanitized-tests, of the test programs that link no LibTorch, whose wheel is
#                                  not instrumented. Called last.
#   tacc_tell_sanitizer(target)  lets ThreadSanitizer know what Debian's Abseil, which is not instrumented, orders in a
#       program. Of gRPC it knows nothing: programs that serve or call are left out (scripts/sanitize).
set(TACC_SANITIZE "" CACHE STRING "sanitizers to compile in, separated by commas")
if(TACC_SANITIZE)
  add_compile_options(
    $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${TACC_SANITIZE}>
    $<$<COMPILE_LANGUAGE:C,CXX>:-fno-sanitize-recover=all>
    $<$<COMPILE_LANGUAGE:C,CXX>:-fno-omit-frame-pointer>
    $<$<COMPILE_LANGUAGE:C,CXX>:-g1>
  )
  add_link_options(-fsanitize=${TACC_SANITIZE})
endif()

if(TACC_SANITIZE MATCHES thread)
  add_library(tacc_tsan_abseil OBJECT ${CMAKE_SOURCE_DIR}/tests/tsan/abseil_synchronization.cc)
  target_compile_options(tacc_tsan_abseil PRIVATE -fno-sanitize=thread)
endif()
function(tacc_tell_sanitizer target)
  if(TARGET tacc_tsan_abseil)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:tacc_tsan_abseil>)
    target_link_libraries(${target} PRIVATE absl::synchronization)
  endif()
endfunction()

function(tacc_gather_sanitized_tests)
  add_custom_target(sanitized-tests)
  get_property(tests GLOBAL PROPERTY TACC_TEST_PROGRAMS)
  foreach(test IN LISTS tests)
    tacc_links_torch(${test} torch)
    if(NOT torch)
      add_dependencies(sanitized-tests ${test})
    endif()
  endforeach()
endfunction()
