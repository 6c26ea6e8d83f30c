// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace sluice::control {

// Of the whole project, as CMake knows it.
constexpr const char* kVersion = SLUICE_VERSION;

}  // namespace sluice::control
