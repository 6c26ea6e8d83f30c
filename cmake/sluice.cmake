# SPDX-License-Identifier: Apache-2.0
# What every target of this project shares: warnings, sanitizers, and how a unit test is declared.

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

add_library(sluice_flags INTERFACE)
target_compile_options(sluice_flags INTERFACE -Wall -Wextra -Wconversion -Werror -fno-omit-frame-pointer)
target_include_directories(sluice_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_link_libraries(sluice_flags INTERFACE Threads::Threads)
if(SLUICE_SANITIZE)
  target_compile_options(sluice_flags INTERFACE -fsanitize=${SLUICE_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(sluice_flags INTERFACE -fsanitize=${SLUICE_SANITIZE})
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

# sluice_test(NAME SOURCES a_test.cc LIBS x): a GoogleTest binary that ctest runs case by case.
function(sluice_test name)
  if(NOT SLUICE_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT;LABEL" "SOURCES;LIBS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  find_package(GTest REQUIRED)
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE sluice_flags ${ARG_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS ${ARG_LABEL})
endfunction()
