#include "tools/gpuctl/table.h"

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <utility>

namespace gpuctl {
namespace {

// Three digits, and no more than it has: "1.5", "12.3", "456".
std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f", value < 10 ? 2 : value < 100 ? 1 : 0, value);
  std::string out = text;
  if (out.find('.') == std::string::npos) return out;
  while (out.back() == '0') out.pop_back();
  if (out.back() == '.') out.pop_back();
  return out;
}

}  // namespace

Table::Table(std::vector<std::string> header) {
  for (auto& name : header) {
    right_.push_back(name.starts_with('>'));
    if (right_.back()) name.erase(0, 1);
  }
  rows_.push_back(std::move(header));
}

void Table::add(std::vector<std::string> row) {
  assert(row.size() == right_.size());
  rows_.push_back(std::move(row));
}

std::string Table::text(const std::string& indent) const {
  std::vector<std::size_t> width(right_.size());
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  std::string out;
  for (const auto& row : rows_) {
    std::string line = indent;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string gap(width[i] - row[i].size(), ' ');
      line += (i == 0 ? "" : "  ") + (right_[i] ? gap + row[i] : row[i] + gap);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return short_number(value) + " " + kUnits[unit];
}

std::string duration_text(std::uint64_t ns) {
  constexpr const char* kUnits[] = {"ns", "us", "ms", "s"};
  double value = static_cast<double>(ns);
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  return short_number(value) + " " + kUnits[unit];
}

std::string rate_text(std::uint64_t bytes, double seconds) {
  if (seconds <= 0) return "-";
  return short_number(static_cast<double>(bytes) / seconds / 1e9) + " GB/s";
}

}  // namespace gpuctl
