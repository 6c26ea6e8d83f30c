// SPDX-License-Identifier: Apache-2.0
#include "shm_proto/base/random.h"

#include <sys/random.h>

#include "shm_proto/base/check.h"

namespace sluice {

uint64_t SystemRandom::Next() {
  uint64_t value = 0;
  const ssize_t got = getrandom(&value, sizeof(value), 0);
  SLUICE_CHECK(got == static_cast<ssize_t>(sizeof(value)), "getrandom fills eight bytes at once");
  return value;
}

}  // namespace sluice
