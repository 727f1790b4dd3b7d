#include "tools/bench/program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <thread>
#include <utility>

#include "tools/bench/machine.h"

namespace bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::seconds kStart{60};
constexpr std::chrono::seconds kEnd{20};

std::string last_line(const std::string& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);)
    if (!line.empty()) last = line;
  return last;
}

[[noreturn]] void become(const std::string& path, const std::vector<char*>& argv, int core, int out,
                         const std::string& log_file, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(126);
  if (core >= 0) pin(core);
  ::dup2(out, STDOUT_FILENO);
  const int log = ::open(log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log >= 0) ::dup2(log, STDERR_FILENO);
  ::execv(path.c_str(), argv.data());
  ::_exit(127);
}

}  // namespace

base::Result<Program> Program::start(const std::string& path,
                                     const std::vector<std::string>& arguments, int core,
                                     const std::string& ready, const std::string& log_file) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return base::fail(base::Errc::kSystem, "pipe", errno);
  Program program;
  program.output_.reset(ends[0]);
  const base::UniqueFd theirs(ends[1]);
  std::vector<char*> argv{const_cast<char*>(path.c_str())};
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  program.pid_ = ::fork();
  if (program.pid_ < 0) return base::fail(base::Errc::kSystem, "fork", errno);
  if (program.pid_ == 0) become(path, argv, core, theirs.get(), log_file, parent);
  if (!program.wait_line(ready, kStart))
    return base::fail(base::Errc::kNotFound, path + " did not start: " + last_line(log_file));
  return program;
}

Program::Program(Program&& other) noexcept { *this = std::move(other); }

Program& Program::operator=(Program&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(output_, other.output_);
  return *this;
}

Program::~Program() {
  if (pid_ > 0) stop();
}

bool Program::wait_line(const std::string& prefix, std::chrono::seconds patience) {
  const auto end = SteadyClock::now() + patience;
  std::string line;
  for (char c = 0;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - SteadyClock::now());
    pollfd waiting{output_.get(), POLLIN, 0};
    if (left.count() <= 0 || ::poll(&waiting, 1, static_cast<int>(left.count())) <= 0) return false;
    if (::read(output_.get(), &c, 1) != 1) return false;
    if (c != '\n') {
      line += c;
      continue;
    }
    if (line.starts_with(prefix)) return true;
    line.clear();
  }
}

void Program::stop() {
  ::kill(pid_, SIGTERM);
  const auto end = SteadyClock::now() + kEnd;
  while (::waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (SteadyClock::now() >= end) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  pid_ = -1;
}

}  // namespace bench
