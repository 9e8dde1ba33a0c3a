# LibTorch from the pinned torch wheel in .venv, as imported targets. (The wheel's own TorchConfig.cmake asks for an
# installed CUDA toolkit, which a CPU-only machine does not have.)
#   torch_cpu : ATen, c10, c10d with Gloo. Run path points at the wheel.
execute_process(
  COMMAND ${CMAKE_SOURCE_DIR}/.venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'), end='')"
  OUTPUT_VARIABLE TACC_SITE_PACKAGES
  RESULT_VARIABLE python_result
)
if(NOT python_result EQUAL 0 OR NOT EXISTS ${TACC_SITE_PACKAGES}/torch/lib/libtorch_cpu.so)
  message(FATAL_ERROR "No LibTorch in .venv: run `make setup` first.")
endif()
set(TORCH_DIR ${TACC_SITE_PACKAGES}/torch)

add_library(c10 SHARED IMPORTED)
set_target_properties(c10 PROPERTIES IMPORTED_LOCATION ${TORCH_DIR}/lib/libc10.so)
add_library(torch_cpu SHARED IMPORTED)
set_target_properties(
  torch_cpu
  PROPERTIES
    IMPORTED_LOCATION ${TORCH_DIR}/lib/libtorch_cpu.so
    INTERFACE_COMPILE_OPTIONS
      "SHELL:-idirafter ${TORCH_DIR}/include;SHELL:-idirafter ${TORCH_DIR}/include/torch/csrc/api/include;-fopenmp"
    INTERFACE_LINK_OPTIONS
      "-Wl,-rpath,${TORCH_DIR}/lib;-Wl,-rpath-link,${TORCH_DIR}/lib;-Wl,-rpath-link,${TACC_SITE_PACKAGES}/nvidia/cu13/lib;-Wl,--unresolved-symbols=ignore-in-shared-libs"
    INTERFACE_LINK_LIBRARIES "c10;${TORCH_DIR}/lib/libgomp.so.1"
)

# Whether `target` links LibTorch, at any depth. Once all targets are there.
function(tacc_links_torch target result)
  get_target_property(known ${target} TACC_LINKS_TORCH)
  if(known STREQUAL "known-NOTFOUND")
    set(known OFF)
    # What is being looked at counts as known: libraries from outside link one another in circles.
    set_target_properties(${target} PROPERTIES TACC_LINKS_TORCH OFF)
    foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
      get_target_property(libraries ${target} ${property})
      foreach(library IN LISTS libraries)
        if(library STREQUAL torch_cpu)
          set(known ON)
        elseif(NOT known AND TARGET ${library})
          tacc_links_torch(${library} known)
        endif()
      endforeach()
    endforeach()
    set_target_properties(${target} PROPERTIES TACC_LINKS_TORCH ${known})
  endif()
  set(${result} ${known} PARENT_SCOPE)
endfunction()
