// Child processes of whole-system tests: started, read line by line, ended by pid.
#pragma once

#include <signal.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"

namespace whole {

using namespace std::chrono_literals;

// No test waits this long when all is well; the machines are slow at times, and slower under
// sanitizers.
inline constexpr auto kPatience = 60s;

// One program. Its stdout is a pipe to us; stderr is kept in a file and printed when a test fails.
class Process {
 public:
  // `program` is looked up in $GPUUMD_BIN unless it has a slash.
  static Process start(const std::string& program, const std::vector<std::string>& arguments,
                       const std::string& log_file);
  // Where start() finds a program.
  static std::string path_of(const std::string& program);
  // The same as a program and arguments for start() that file permissions hold for, root's too.
  static std::pair<std::string, std::vector<std::string>> unprivileged(
      const std::string& program, const std::vector<std::string>& arguments);
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();  // SIGKILL if it still runs

  pid_t pid() const { return pid_; }
  // The next line of stdout that starts with `prefix`; nullopt when it ends or time runs out.
  std::optional<std::string> line_with(const std::string& prefix,
                                       std::chrono::milliseconds patience = kPatience);
  void signal(int number) const;
  // Exit code (128 + signal when killed), or nullopt when it does not end in time.
  std::optional<int> wait(std::chrono::milliseconds patience = kPatience);
  // SIGTERM, then wait().
  std::optional<int> stop(std::chrono::milliseconds patience = kPatience);
  std::string log() const;
  // What the kernel lists for it now.
  std::size_t descriptors() const;
  std::size_t mappings() const;

 private:
  Process() = default;
  pid_t pid_ = -1;
  std::optional<int> code_;
  base::UniqueFd output_;
  std::string buffered_;
  std::string log_file_;
};

}  // namespace whole
