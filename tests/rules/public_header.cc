// SPDX-License-Identifier: Apache-2.0
#include <sluice/sluice.h>
#if __has_include(<sluice/sluice.hpp>)
#include <sluice/sluice.hpp>
#endif
#if __has_include(<sluice/rpc.hpp>)
#include <sluice/rpc.hpp>
#endif

int main() { return sluice_version() == nullptr; }
