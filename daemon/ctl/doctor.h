// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

// What on this host keeps the daemon from working, or from working well.
namespace sluice::ctl {

enum class Severity { kGood, kNote, kFix };

struct Finding {
  std::string check;
  Severity severity = Severity::kGood;
  std::string found;
  std::string means;   // Empty when good.
  std::string advice;  // Empty when there is nothing to do.
};

// Tries what can be tried, reads the rest. Needs no daemon; changes nothing that stays.
std::vector<Finding> ExamineHost(uint16_t peer_port);

}  // namespace sluice::ctl
