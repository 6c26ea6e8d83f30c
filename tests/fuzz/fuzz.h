// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// A fuzz target is one file that defines these two. With clang it is linked with libFuzzer (preset
// fuzz); otherwise with driver.cc, which feeds it a fixed sequence of mutated seeds and random
// bytes, as a test that runs everywhere. A target returns normally whatever the bytes are; a broken
// promise ends the process (SLUICE_CHECK).

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace sluice::fuzz {

// Well-formed inputs to start from; may be empty.
std::vector<std::string> Seeds();

}  // namespace sluice::fuzz
