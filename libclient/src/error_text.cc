// SPDX-License-Identifier: Apache-2.0
#include "libclient/src/error_text.h"

#include <cstdio>

namespace sluice::client {
namespace {

// Plain arrays: nothing to construct or destroy when threads come and go.
thread_local char text_copy[512] = "";
thread_local const char* text = "";

}  // namespace

int Refuse(int error_number, const char* literal) {
  text = literal;
  return -error_number;
}

int RefuseWith(int error_number, const std::string& sentence) {
  std::snprintf(text_copy, sizeof(text_copy), "%s", sentence.c_str());
  text = text_copy;
  return -error_number;
}

int Refuse(const Refusal& refusal) { return RefuseWith(refusal.error, refusal.text); }

const char* ErrorText() { return text; }

}  // namespace sluice::client
