# SPDX-License-Identifier: Apache-2.0
# cmake -DBUILD=.. -DSOURCE=.. -DLIBDIR=.. -DCC=.. -DCXX=.. -P install_test.cmake
# Installs the library into an empty prefix and builds programs against nothing but that.
cmake_minimum_required(VERSION 3.25)
set(work ${BUILD}/libclient/install_test)
set(prefix ${work}/prefix)
file(REMOVE_RECURSE ${work})
file(MAKE_DIRECTORY ${work})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT status EQUAL 0)
    string(JOIN " " command ${ARGN})
    message(FATAL_ERROR "${command}\n${out}")
  endif()
  set(output "${out}" PARENT_SCOPE)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --component libsluice --prefix ${prefix})
file(READ ${SOURCE}/examples/hello/hello.cc hello)
string(REGEX MATCHALL "\n" lines "${hello}")
list(LENGTH lines count)
if(count GREATER_EQUAL 40)
  message(FATAL_ERROR "hello.cc has ${count} lines; it is to stay under 40")
endif()

# With CMake's package, C++17.
run(${CMAKE_COMMAND} -S ${SOURCE}/examples/hello -B ${work}/hello
    -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_COMPILER=${CXX}
    "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wconversion -Wpedantic -Werror")
run(${CMAKE_COMMAND} --build ${work}/hello)

# With pkg-config, C11, shared and static.
file(WRITE ${work}/hello.c [[
#include <sluice/sluice.h>
#include <stdio.h>
int main(void) {
  sluice_client *client = 0;
  sluice_options options = {sizeof(options), "/nonexistent/sluiced.sock", "hello", 0};
  int status = sluice_attach(&options, &client);
  printf("%s %d %s\n", sluice_version(), status, sluice_error_text());
  return status == -2 ? 0 : 1;
}
]])
set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIBDIR}/pkgconfig)
# The prefix was chosen when installing, the file was written when configuring.
run(pkg-config --define-variable=prefix=${prefix} --cflags --libs sluice)
separate_arguments(flags UNIX_COMMAND "${output}")
run(${CC} -std=c11 -Wall -Wextra -Wpedantic -Werror ${work}/hello.c -o ${work}/shared ${flags})
run(${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${prefix}/${LIBDIR} ${work}/shared)
if(NOT output MATCHES "no daemon")
  message(FATAL_ERROR "attaching to nobody said: ${output}")
endif()
run(${CC} -std=c11 ${work}/hello.c -o ${work}/static -I${prefix}/include
    ${prefix}/${LIBDIR}/libsluice.a -lstdc++ -pthread)
run(${work}/static)

# Nothing but the declared functions leaves the library, all under one version.
run(nm -D --defined-only ${prefix}/${LIBDIR}/libsluice.so)
string(REGEX MATCHALL "[^\n]+" symbols "${output}")
file(READ ${SOURCE}/include/sluice/sluice.h header)
string(REGEX MATCHALL "SLUICE_API [^(]*[ *](sluice_[a-z_]+)\\(" declared "${header}")
list(LENGTH declared declared_count)
set(exported_count 0)
foreach(symbol ${symbols})
  if(symbol MATCHES " A SLUICE_0.1")
    continue()
  endif()
  if(NOT symbol MATCHES " T sluice_[a-z_]+@@SLUICE_0.1$")
    message(FATAL_ERROR "libsluice.so exports ${symbol}")
  endif()
  math(EXPR exported_count "${exported_count} + 1")
endforeach()
if(NOT exported_count EQUAL declared_count)
  message(FATAL_ERROR "sluice.h declares ${declared_count} functions, libsluice.so exports ${exported_count}")
endif()
run(readelf -d ${prefix}/${LIBDIR}/libsluice.so)
if(NOT output MATCHES "libsluice.so.0")
  message(FATAL_ERROR "no SONAME libsluice.so.0")
endif()
