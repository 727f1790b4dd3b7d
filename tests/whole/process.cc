#include "tests/whole/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>

namespace whole {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

std::string Process::path_of(const std::string& program) {
  if (program.find('/') != std::string::npos) return program;
  const char* bin = std::getenv("GPUUMD_BIN");
  return std::string(bin != nullptr ? bin : ".") + "/" + program;
}

std::pair<std::string, std::vector<std::string>> Process::unprivileged(
    const std::string& program, const std::vector<std::string>& arguments) {
  if (::geteuid() != 0) return {program, arguments};
  std::vector<std::string> all{"--bounding-set=-dac_override,-dac_read_search", path_of(program)};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return {"/usr/bin/setpriv", all};
}

Process Process::start(const std::string& program, const std::vector<std::string>& arguments,
                       const std::string& log_file) {
  Process process;
  process.log_file_ = log_file;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return process;
  process.output_.reset(ends[0]);
  base::UniqueFd theirs(ends[1]);
  const std::string path = path_of(program);
  std::vector<char*> argv{const_cast<char*>(path.c_str())};
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  process.pid_ = ::fork();
  if (process.pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(126);
    const int log = ::open(log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(theirs.get(), STDOUT_FILENO);
    if (log >= 0) ::dup2(log, STDERR_FILENO);
    ::execv(path.c_str(), argv.data());
    ::_exit(127);
  }
  return process;
}

Process::Process(Process&& other) noexcept { *this = std::move(other); }

Process& Process::operator=(Process&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(code_, other.code_);
  std::swap(output_, other.output_);
  std::swap(buffered_, other.buffered_);
  std::swap(log_file_, other.log_file_);
  return *this;
}

Process::~Process() {
  if (pid_ < 0 || code_) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

std::optional<std::string> Process::line_with(const std::string& prefix,
                                              std::chrono::milliseconds patience) {
  const auto end = Clock::now() + patience;
  while (true) {
    for (auto at = buffered_.find('\n'); at != std::string::npos; at = buffered_.find('\n')) {
      std::string line = buffered_.substr(0, at);
      buffered_.erase(0, at + 1);
      if (line.starts_with(prefix)) return line;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    pollfd waiting{output_.get(), POLLIN, 0};
    if (left <= 0ms || ::poll(&waiting, 1, static_cast<int>(left.count())) <= 0)
      return std::nullopt;
    char chunk[4096];
    const auto got = ::read(output_.get(), chunk, sizeof(chunk));
    if (got <= 0) return std::nullopt;
    buffered_.append(chunk, static_cast<std::size_t>(got));
  }
}

void Process::signal(int number) const {
  if (pid_ > 0 && !code_) ::kill(pid_, number);
}

std::optional<int> Process::wait(std::chrono::milliseconds patience) {
  const auto end = Clock::now() + patience;
  while (!code_) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      break;
    }
    if (Clock::now() >= end) return std::nullopt;
    std::this_thread::sleep_for(2ms);
  }
  return code_;
}

std::optional<int> Process::stop(std::chrono::milliseconds patience) {
  signal(SIGTERM);
  return wait(patience);
}

std::string Process::log() const {
  std::ifstream file(log_file_);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::size_t Process::descriptors() const {
  const std::filesystem::directory_iterator list("/proc/" + std::to_string(pid_) + "/fd");
  return static_cast<std::size_t>(std::distance(begin(list), end(list)));
}

std::size_t Process::mappings() const {
  std::ifstream maps("/proc/" + std::to_string(pid_) + "/maps");
  return static_cast<std::size_t>(
      std::count(std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>(), '\n'));
}

}  // namespace whole
