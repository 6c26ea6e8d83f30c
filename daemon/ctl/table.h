// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/ctl/admin_client.h"

// How figures look to people.
namespace sluice::ctl {

enum class Shape { kText, kNumber, kBytes, kSeconds, kYesNo };

struct Column {
  const char* key;  // In a row's JSON.
  const char* title;
  Shape shape = Shape::kText;
};

// One line a row, columns aligned, numbers to the right; a line in their place when there is none.
std::string Table(const Json& rows, const std::vector<Column>& columns,
                  const std::string& when_empty);

// "title: value" lines of one object.
std::string Sheet(const Json& object, const std::vector<Column>& lines);

std::string Bytes(double bytes);                 // "1.5 MiB"
std::string Duration(double seconds);            // "3 min 20 s"
std::string Printable(const std::string& text);  // Control characters cannot steer the terminal.

}  // namespace sluice::ctl
