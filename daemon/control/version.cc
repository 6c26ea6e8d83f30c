// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/version.h"

namespace sluice::control {

const char* const kVersion = SLUICE_VERSION;

}  // namespace sluice::control
