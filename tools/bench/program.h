// A program that a benchmark starts and ends.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace bench {

class Program {
 public:
  // Starts `path` on `core` (-1: on any) and waits for a line of its stdout that starts with
  // `ready`. Its stderr goes to `log_file`, whose end is the text of the error.
  static base::Result<Program> start(const std::string& path,
                                     const std::vector<std::string>& arguments, int core,
                                     const std::string& ready, const std::string& log_file);
  Program(Program&& other) noexcept;
  Program& operator=(Program&& other) noexcept;
  ~Program();  // SIGTERM, and SIGKILL when that does not end it

  pid_t pid() const { return pid_; }

 private:
  Program() = default;
  bool wait_line(const std::string& prefix, std::chrono::seconds patience);
  void stop();

  pid_t pid_ = -1;
  base::UniqueFd output_;
};

}  // namespace bench
