// The program's own open() and write(), in place of the C library's: a file reset_method refuses
// what the kernel would, where FakeKernel::can_reset_by() says what the device can do. In the
// process that writes, because a refusal has to be the answer to that write; called between fork
// and _exit, therefore without memory of its own.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <string_view>

namespace {

constexpr std::string_view kName = "/reset_method";

std::string_view trimmed(std::string_view text) {
  const auto end = text.find_last_not_of(" \n");
  return text.substr(0, end == std::string_view::npos ? 0 : end + 1);
}

bool has_word(std::string_view text, std::string_view word) {
  while (!text.empty()) {
    const auto end = text.find(' ');
    if (text.substr(0, end) == word) return true;
    text = end == std::string_view::npos ? "" : text.substr(end + 1);
  }
  return false;
}

bool has_all(std::string_view text, std::string_view wanted) {
  while (!wanted.empty()) {
    const auto end = wanted.find(' ');
    if (!has_word(text, wanted.substr(0, end))) return false;
    wanted = end == std::string_view::npos ? "" : wanted.substr(end + 1);
  }
  return true;
}

constexpr std::string_view kPossible = ".possible";
using Path = std::array<char, PATH_MAX>;

// Whether it is such an attribute; with room after its path.
bool is_attribute(int fd, Path& path) {
  std::array<char, 32> link{};
  (void)std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
  const auto got = ::readlink(link.data(), path.data(), path.size() - kPossible.size() - 1);
  return got > 0 && std::string_view(path.data(), static_cast<std::size_t>(got)).ends_with(kName);
}

// What the device can do; false when nobody says.
bool read_possible(Path& path, std::array<char, 256>& buffer, std::string_view& methods) {
  kPossible.copy(path.data() + std::string_view(path.data()).size(), kPossible.size());
  const int file = ::open(path.data(), O_RDONLY);
  if (file < 0) return false;
  const auto got = ::read(file, buffer.data(), buffer.size());
  ::close(file);
  if (got < 0) return false;
  methods = trimmed({buffer.data(), static_cast<std::size_t>(got)});
  return true;
}

ssize_t real_write(int fd, const void* data, std::size_t bytes) {
  return ::syscall(SYS_write, fd, data, bytes);
}

}  // namespace

// An attribute is not emptied by being opened.
extern "C" int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, unsigned) : 0;
  va_end(arguments);
  if (std::string_view(path).ends_with(kName)) flags &= ~O_TRUNC;
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

extern "C" ssize_t write(int fd, const void* data, std::size_t bytes) {
  Path path{};
  if (!is_attribute(fd, path)) return real_write(fd, data, bytes);
  std::array<char, 256> buffer;
  std::string_view methods;
  std::string_view text(static_cast<const char*>(data), bytes);
  if (read_possible(path, buffer, methods)) {
    text = trimmed(text);
    if (text == "default") text = methods;
    if (!has_all(methods, text)) {
      errno = EINVAL;
      return -1;
    }
  }
  if (::ftruncate(fd, 0) != 0) return -1;
  return real_write(fd, text.data(), text.size()) < 0 ? -1 : static_cast<ssize_t>(bytes);
}
