// Text tables and the units in them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpuctl {

// Columns as wide as their widest cell; those that begin with '>' in the header are right-aligned.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  void add(std::vector<std::string> row);  // as many cells as the header
  // One line a row, each behind `indent`.
  std::string text(const std::string& indent = "") const;

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

std::string bytes_text(std::uint64_t bytes);                 // "1 GiB", "1.5 MiB", "17 B"
std::string duration_text(std::uint64_t ns);                 // "950 ns", "12.3 us", "4.56 ms"
std::string rate_text(std::uint64_t bytes, double seconds);  // "3.21 GB/s"

}  // namespace gpuctl
