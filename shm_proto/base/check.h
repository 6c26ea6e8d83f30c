// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>

namespace sluice {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* condition,
                                     const char* invariant) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s (%s)\n", file, line, invariant, condition);
  std::abort();
}

}  // namespace sluice

// For our own bugs only, on in every build. Nothing that another process or host can influence may
// reach it.
#define SLUICE_CHECK(condition, invariant)           \
  (__builtin_expect(static_cast<bool>(condition), 1) \
       ? static_cast<void>(0)                        \
       : ::sluice::CheckFailed(__FILE__, __LINE__, #condition, invariant))
