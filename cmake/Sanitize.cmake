# TACC_SANITIZE=address,undefined instruments this build; scripts/sanitize makes and runs such builds.
#   tacc_gather_sanitized_tests()  a target, sanitized-tests, of the test programs that link no LibTorch, whose wheel is
#                                  not instrumented. Called last.
# (ThreadSanitizer does not see the mutexes of Debian's Abseil, which is not instrumented either, and reports races in
# whatever they guard.)
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
