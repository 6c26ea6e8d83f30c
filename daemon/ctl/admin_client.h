// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "daemon/ctl/exit_code.h"
#include "shm_proto/base/fd.h"

namespace sluice::ctl {

using Json = nlohmann::ordered_json;

// Why a request has no result: what to end with and what to tell.
struct Failure {
  ExitCode code = kFailed;
  std::string message;
};

struct Answer {
  bool ok = false;
  Json result;      // When ok.
  Failure failure;  // Else.
};

// One connection to a daemon's admin socket, made with the first request.
// Thread: one. Blocks at most kTimeoutMs a request. Owns: the connection.
class AdminClient {
 public:
  static constexpr int kTimeoutMs = 10'000;
  static constexpr size_t kMaxAnswerBytes = size_t{1} << 30;

  explicit AdminClient(std::string path) : path_(std::move(path)) {}

  Answer Ask(const std::string& verb, const Json& arguments = Json::object());
  const std::string& path() const { return path_; }

 private:
  Answer Connect();
  Answer Exchange(const std::string& line);

  std::string path_;
  Fd fd_;
};

}  // namespace sluice::ctl
