# SPDX-License-Identifier: Apache-2.0
# What every target of this project shares: warnings, sanitizers, and how a unit test is declared.

# A second build of the same source, and one under another preset's folder, costs little where ccache is installed.
find_program(SLUICE_CCACHE ccache)
if(SLUICE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${SLUICE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SLUICE_CCACHE})
endif()

# The sanitizer presets' build type: optimised a little, with line numbers for reports.
set(CMAKE_C_FLAGS_SANITIZE "-O1 -g1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_SANITIZE "-O1 -g1 -DNDEBUG -D_GLIBCXX_ASSERTIONS")

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

add_library(sluice_flags INTERFACE)
target_compile_options(sluice_flags INTERFACE -Wall -Wextra -Wconversion -Werror -fno-omit-frame-pointer)
target_include_directories(sluice_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_link_libraries(sluice_flags INTERFACE Threads::Threads)
if(SLUICE_FUZZ)
  target_compile_options(sluice_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(SLUICE_SANITIZE)
  target_compile_options(sluice_flags INTERFACE -fsanitize=${SLUICE_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(sluice_flags INTERFACE -fsanitize=${SLUICE_SANITIZE})
  # With sanitizers g++ sees uninitialised values where there are none; the optimised build looks for real ones.
  target_compile_options(sluice_flags INTERFACE -Wno-maybe-uninitialized)
  # TSan does not model fences, which g++ reports as a warning; the ring's use of them is argued where it stands.
  if(SLUICE_SANITIZE MATCHES "thread")
    target_compile_options(sluice_flags INTERFACE -Wno-tsan)
  endif()
endif()

# sluice_library(NAME SOURCES a.cc b.cc LIBS x y): one layer of the house as a static library.
function(sluice_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC sluice_flags ${ARG_LIBS})
endfunction()

# What scripts/test builds for its layers.
if(SLUICE_TESTS)
  add_custom_target(unit_tests)
  add_custom_target(process_tests)
  add_custom_target(vm_tests)
  add_custom_target(threaded_tests)
  add_custom_target(fuzz_targets)
endif()

# sluice_vm_test(TARGET [ARGS a b]): that program runs in the VM of tests/vm/, as the test vm_TARGET.
function(sluice_vm_test target)
  cmake_parse_arguments(ARG "" "" "ARGS" ${ARGN})
  set_property(GLOBAL APPEND PROPERTY SLUICE_VM_TESTS ${target})
  set_property(GLOBAL PROPERTY SLUICE_VM_TEST_${target} $<TARGET_FILE:${target}> ${ARG_ARGS})
  add_dependencies(vm_tests ${target})
endfunction()

# sluice_test(NAME SOURCES a_test.cc LIBS x [TIMEOUT seconds] [LABEL unit|property|process|vm] [THREADED]): a GoogleTest
# binary. THREADED: it has threads of its own and runs under ThreadSanitizer too. LABEL vm: it runs in the VM only.
function(sluice_test name)
  if(NOT SLUICE_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "THREADED" "TIMEOUT;LABEL" "SOURCES;LIBS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  find_package(GTest REQUIRED)
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE sluice_flags ${ARG_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_options(${name} PRIVATE ${SLUICE_TEST_FLAGS})
  if(ARG_LABEL STREQUAL "vm")
    sluice_vm_test(${name} ARGS --gtest_brief=1)
    return()
  endif()
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  set(labels ${ARG_LABEL})
  if(ARG_LABEL STREQUAL "process")
    add_dependencies(process_tests ${name})
  else()
    add_dependencies(unit_tests ${name})
  endif()
  if(ARG_THREADED)
    list(APPEND labels threaded)
    add_dependencies(threaded_tests ${name})
  endif()
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${ARG_TIMEOUT}
    LABELS "${labels}"
    # A test that forks while it has threads is judged by what it tests, not ended for the fork.
    ENVIRONMENT "GTEST_OUTPUT=xml:${CMAKE_BINARY_DIR}/test-results/${name}.xml;TSAN_OPTIONS=die_after_fork=0")
endfunction()

# sluice_fuzz(NAME SOURCES a_fuzz.cc LIBS x): a fuzz target (tests/fuzz/fuzz.h). With SLUICE_FUZZ (clang) libFuzzer drives
# it for a few seconds a run; otherwise a fixed sequence of inputs does, as one more property test.
function(sluice_fuzz name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  if(SLUICE_FUZZ)
    add_executable(${name} ${ARG_SOURCES})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    add_test(NAME ${name} COMMAND ${name} -max_total_time=${SLUICE_FUZZ_SECONDS} -rss_limit_mb=2048 -print_final_stats=1)
  else()
    add_executable(${name} ${ARG_SOURCES} ${PROJECT_SOURCE_DIR}/tests/fuzz/driver.cc)
    add_test(NAME ${name} COMMAND ${name})
  endif()
  target_link_libraries(${name} PRIVATE sluice_flags ${ARG_LIBS})
  add_dependencies(unit_tests ${name})
  add_dependencies(fuzz_targets ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 LABELS "property;fuzz")
endfunction()
