# TACC_SANITIZE=address,undefined or =thread instruments this build; scripts/sanitize makes and runs such builds.
#   tacc_gather_sanitized_tests()  targets of the test programs that link no LibTorch, whose wheel is not instrumented:
#                                  sanitized-tests of all, threaded-tests of those that start threads. Called last.
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

set(
  threaded_libraries
  tacc_rank_testing
  tacc_data
  tacc_worker_daemon
  tacc_worker_machine
  tacc_coordinator_service
  tacc_coordinator_compile
  tacc_metrics
  tacc_simulated_gpu
)

function(tacc_gather_sanitized_tests)
  add_custom_target(sanitized-tests)
  add_custom_target(threaded-tests)
  get_property(tests GLOBAL PROPERTY TACC_TEST_PROGRAMS)
  foreach(test IN LISTS tests)
    tacc_links_torch(${test} torch)
    if(NOT torch)
      add_dependencies(sanitized-tests ${test})
      get_target_property(libraries ${test} LINK_LIBRARIES)
      foreach(library IN LISTS threaded_libraries)
        if(library IN_LIST libraries)
          add_dependencies(threaded-tests ${test})
        endif()
      endforeach()
    endif()
  endforeach()
endfunction()
