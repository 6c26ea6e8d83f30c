// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <expected>
#include <string>

#include "shm_proto/base/result.h"

namespace sluice::client {

// As the public interface says it: a positive errno value, which may be the daemon's, and one
// sentence.
struct Refusal {
  int error;
  std::string text;
};

template <typename T>
using Answer = std::expected<T, Refusal>;

inline std::unexpected<Refusal> Deny(int error, std::string text) {
  return std::unexpected(Refusal{error, std::move(text)});
}
inline std::unexpected<Refusal> Deny(const Error& error) {
  return Deny(ToErrno(error.code), error.message);
}

// The sentence behind the calling thread's last error. The only state that is not a client's own:
// it belongs to the thread. Each records a sentence and returns -error_number, so that a refusal is
// one line at its place.
int Refuse(int error_number, const char* literal);  // Keeps the pointer: literals only.
int RefuseWith(int error_number, const std::string& sentence);
int Refuse(const Refusal& refusal);

const char* ErrorText();  // Never null.

}  // namespace sluice::client
