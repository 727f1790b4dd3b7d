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
  // Before it is reported: the end of this process takes a while, and the next write may be over
  // by then.
  if (file >= 0) ::close(file);
}

[[noreturn]] void child(const char* path, const std::string_view* text, int result) {
  constexpr int kResult = 0;  // the only descriptor that it keeps
  ::dup2(result, kResult);
  ::close_range(kResult + 1, ~0u, 0);
  // The caller's child is this one's parent and ends at once: whenever this one ends, init reaps
  // it, however long the kernel has kept it.
  if (const pid_t pid = ::_Fork(); pid != 0) ::_exit(pid > 0 ? 0 : 1);
  const pid_t self = ::getpid();
  if (::write(kResult, &self, sizeof(self)) != sizeof(self)) ::_exit(1);
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

// All of `size` bytes by `deadline`: 1, 0 when the other end is closed before, -1 when it is late.
int receive(int fd, void* to, std::size_t size, Clock::time_point deadline) {
  std::size_t done = 0;
  while (done < size) {
    if (!wait_readable(fd, deadline)) return -1;
    const auto got = ::read(fd, static_cast<char*>(to) + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return 0;
    done += static_cast<std::size_t>(got);
  }
  return 1;
}

// It ends without touching anything that could keep it.
void reap(pid_t pid) {
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
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
  reap(pid);
  pid_t worker = 0;
  Report report;
  int answered = receive(out.get(), &worker, sizeof(worker), deadline);
  if (answered > 0) answered = receive(out.get(), &report, sizeof(report), deadline);
  if (answered < 0) {
    if (worker > 0) ::kill(worker, SIGKILL);
    return base::fail(base::Errc::kTimeout, path + ": the kernel has not answered for " +
                                                std::to_string(patience.count()) + " ms (process " +
                                                std::to_string(worker) + " waits in it)");
  }
  if (answered == 0)
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
