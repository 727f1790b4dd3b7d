// gpuctl run to its end.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/whole/process.h"

namespace gpuctl_test {

struct Ran {
  int code = -1;  // -1: it did not end in time
  std::string out;
  std::string error;
  // One line on standard error, and nothing else.
  bool one_line() const {
    return out.empty() && !error.empty() && error.find('\n') == error.size() - 1;
  }
};

// A directory that goes with the test.
class TempDir {
 public:
  TempDir() : path_(std::filesystem::temp_directory_path() / "gpuctl-test-XXXXXX") {
    std::string pattern = path_;
    if (::mkdtemp(pattern.data()) == nullptr) ADD_FAILURE() << pattern;
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline Ran gpuctl(const std::vector<std::string>& arguments) {
  const TempDir logs;
  auto process = whole::Process::start("gpuctl", arguments, logs.path() + "/error");
  Ran ran;
  while (auto line = process.line_with("")) ran.out += *line + "\n";
  ran.code = process.wait().value_or(-1);
  ran.error = process.log();
  return ran;
}

}  // namespace gpuctl_test
