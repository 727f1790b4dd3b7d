#include "vfio/sysfs/guarded_io.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <thread>

#include "base/fd.h"
#include "vfio/sysfs/tree.h"

namespace vfio::sysfs {
namespace {

using Clock = std::chrono::steady_clock;

// What the child sends, in one write to a pipe, which is atomic at this size.
struct Report {
  int error = 0;
  std::uint32_t bytes = 0;
  std::array<char, PIPE_BUF - 8> text{};
};
static_assert(sizeof(Report) == PIPE_BUF);

// In the child, between fork and _exit: async-signal-safe calls alone.
void do_read(const char* path, Report& report) {
  const int file = ::open(path, O_RDONLY);
  if (file < 0) {
    report.error = errno;
    return;
  }
  while (report.bytes < report.text.size()) {
    const auto got =
        ::read(file, report.text.data() + report.bytes, report.text.size() - report.bytes);
    if (got < 0) report.error = errno;
    if (got <= 0) return;
    report.bytes += static_cast<std::uint32_t>(got);
  }
}

void do_write(const char* path, std::string_view text, Report& report) {
  const int file = ::open(path, O_WRONLY | O_TRUNC);
  if (file < 0 || ::write(file, text.data(), text.size()) < 0) report.error = errno;
}

[[noreturn]] void child(const char* path, const std::string_view* text, int result) {
  constexpr int kResult = 0;  // the only descriptor that it keeps
  ::dup2(result, kResult);
  ::close_range(kResult + 1, ~0u, 0);
  Report report;
  if (text != nullptr)
    do_write(path, *text, report);
  else
    do_read(path, report);
  const auto sent = ::write(kResult, &report, sizeof(report));
  ::_exit(sent == sizeof(report) ? 0 : 1);
}

// True when there is something to read, or the other end is closed, by `deadline`.
bool wait_readable(int fd, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd entry{fd, POLLIN, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::clamp<long long>(left, 0, INT_MAX)));
    if (ready > 0) return true;
    if (ready == 0 && left <= 0) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

// Of a child that has been told to end; one that the kernel holds is left to init.
void reap(pid_t pid) {
  for (int attempt = 0; attempt < 50; ++attempt) {
    if (::waitpid(pid, nullptr, WNOHANG) != 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

base::Result<Report> run(const std::string& path, const std::string_view* text,
                         std::chrono::milliseconds patience) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return base::fail(base::Errc::kSystem, "pipe for " + path, errno);
  const base::UniqueFd out(ends[0]);
  base::UniqueFd in(ends[1]);
  const auto deadline = Clock::now() + patience;
  const pid_t pid = ::fork();
  if (pid < 0) return base::fail(base::Errc::kSystem, "process for " + path, errno);
  if (pid == 0) child(path.c_str(), text, in.get());
  in.reset();
  Report report;
  const bool answered = wait_readable(out.get(), deadline);
  const auto got = answered ? ::read(out.get(), &report, sizeof(report)) : 0;
  if (!answered) ::kill(pid, SIGKILL);
  reap(pid);
  if (!answered)
    return base::fail(base::Errc::kTimeout, path + ": the kernel has not answered for " +
                                                std::to_string(patience.count()) + " ms (process " +
                                                std::to_string(pid) + " waits in it)");
  if (got != sizeof(report))
    return base::fail(base::Errc::kSystem, path + ": the process for it ended without an answer");
  if (report.error != 0) return std::unexpected(system_error(path, report.error));
  return report;
}

}  // namespace

base::Result<std::string> read_guarded(const std::string& path,
                                       std::chrono::milliseconds patience) {
  const auto report = run(path, nullptr, patience);
  if (!report) return std::unexpected(report.error());
  std::string text(report->text.data(), report->bytes);
  text.erase(text.find_last_not_of(" \n\t") + 1);
  return text;
}

base::Result<void> write_guarded(const std::string& path, std::string_view text,
                                 std::chrono::milliseconds patience) {
  const auto report = run(path, &text, patience);
  if (!report) return std::unexpected(report.error());
  return {};
}

}  // namespace vfio::sysfs
