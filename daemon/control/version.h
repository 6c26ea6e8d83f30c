// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace sluice::control {

// Of the whole project, as CMake knows it.
extern const char* const kVersion;

}  // namespace sluice::control
