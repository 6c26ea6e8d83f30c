// SPDX-License-Identifier: Apache-2.0
#include "daemon/ctl/table.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::ctl {
namespace {

std::string Cell(const Json& value, Shape shape) {
  if (value.is_null()) return "-";
  if (shape == Shape::kYesNo && value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (shape == Shape::kBytes && value.is_number()) return Bytes(value.get<double>());
  if (shape == Shape::kSeconds && value.is_number()) return Duration(value.get<double>());
  if (value.is_string()) {
    const std::string text = Printable(value.get<std::string>());
    return text.empty() ? "-" : text;
  }
  return Printable(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// Letters, not bytes: continuation bytes of UTF-8 take no room.
size_t Width(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string Field(const Json& row, const Column& column) {
  const auto found = row.find(column.key);
  return found == row.end() ? "-" : Cell(*found, column.shape);
}

}  // namespace

std::string Bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(units); ++unit) bytes /= 1024;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, units[unit]);
}

std::string Duration(double seconds) {
  if (seconds < 60) return fmt::format("{:.{}f} s", seconds, seconds < 10 ? 1 : 0);
  const auto whole = static_cast<uint64_t>(seconds);
  if (whole < 3'600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  if (whole < 86'400) return fmt::format("{} h {} min", whole / 3'600, whole / 60 % 60);
  return fmt::format("{} d {} h", whole / 86'400, whole / 3'600 % 24);
}

std::string Printable(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7f ? '?' : c;
  }
  return out;
}

std::string Table(const Json& rows, const std::vector<Column>& columns,
                  const std::string& when_empty) {
  if (rows.empty()) return when_empty + "\n";
  std::vector<std::vector<std::string>> cells(1);
  for (const Column& column : columns) cells[0].push_back(column.title);
  for (const Json& row : rows) {
    cells.emplace_back();
    for (const Column& column : columns) cells.back().push_back(Field(row, column));
  }
  std::vector<size_t> widths(columns.size(), 0);
  for (const auto& line : cells) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], Width(line[i]));
  }
  std::string out;
  for (const auto& line : cells) {
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) {
      const std::string room(widths[i] - Width(line[i]), ' ');
      const bool right = columns[i].shape != Shape::kText && columns[i].shape != Shape::kYesNo;
      text += (i == 0 ? "" : "  ") + (right ? room + line[i] : line[i] + room);
    }
    out += text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string Sheet(const Json& object, const std::vector<Column>& lines) {
  size_t width = 0;
  for (const Column& line : lines) width = std::max(width, Width(line.title));
  std::string out;
  for (const Column& line : lines) {
    out += line.title + std::string(":") + std::string(width - Width(line.title) + 2, ' ') +
           Field(object, line) + "\n";
  }
  return out;
}

}  // namespace sluice::ctl
