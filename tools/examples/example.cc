#include "tools/examples/example.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace example {
namespace {

constexpr std::uint64_t kBigEnd = 16 << 20;
constexpr std::uint64_t kSmallEnd = 64 << 20;

}  // namespace

void die(const std::string& text) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, text.c_str());
  std::exit(1);
}

void say(const std::string& key, const std::string& value) {
  std::printf("%s %s\n", key.c_str(), value.c_str());
  std::fflush(stdout);
}

std::vector<std::byte> read_all(int descriptor) {
  std::vector<std::byte> data;
  constexpr std::size_t kPiece = 1 << 20;
  for (std::size_t filled = 0;;) {
    data.resize(filled + kPiece);
    const ssize_t got = ::read(descriptor, data.data() + filled, kPiece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) die(std::string("reading the input: ") + std::strerror(errno));
    filled += static_cast<std::size_t>(got);
    if (got == 0) {
      data.resize(filled);
      return data;
    }
  }
}

void write_file(const std::string& path, std::span<const std::byte> data) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) die(path + ": " + std::strerror(errno));
  for (std::size_t done = 0; done < data.size();) {
    const ssize_t wrote = ::write(file, data.data() + done, data.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) die(path + ": " + std::strerror(errno));
    done += static_cast<std::size_t>(wrote);
  }
  if (::close(file) != 0) die(path + ": " + std::strerror(errno));
}

std::string wait_for_line(const std::string& path, std::chrono::seconds deadline) {
  // Opened for writing too: a FIFO whose writer comes late does not read as ended.
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) die(path + ": " + std::strerror(errno));
  const auto end = std::chrono::steady_clock::now() + deadline;
  std::string line;
  for (;;) {
    char next = 0;
    if (::read(file, &next, 1) == 1) {
      if (next == '\n') break;
      line += next;
      continue;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    if (left.count() <= 0) die(path + ": no word by the deadline");
    pollfd watched{file, POLLIN, 0};
    (void)::poll(&watched, 1, static_cast<int>(left.count()));
  }
  ::close(file);
  return line;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void map_on_fault(gpuumd::Vm& vm, std::uint64_t va, const gpuumd::Buffer& buffer,
                  std::uint64_t bytes) {
  std::vector<gpuumd_bind_op> parts;
  const auto part = [&](std::uint64_t first, std::uint64_t end, std::uint64_t window) {
    end = std::min(end, bytes);
    if (first >= end) return;
    gpuumd_bind_op map{};
    map.kind = GPUUMD_BIND_MAP;
    map.flags = GPUUMD_BIND_READ | GPUUMD_BIND_WRITE | GPUUMD_BIND_ON_FAULT;
    map.va = va + first;
    map.bytes = end - first;
    map.buffer = buffer.raw();
    map.offset = first;
    map.fault_window = window;
    parts.push_back(map);
  };
  part(0, kBigEnd, kBigWindow);
  part(kBigEnd, kSmallEnd, kSmallWindow);
  part(kSmallEnd, bytes, kBigWindow);
  need("map on fault", vm.bind(parts));
}

Windows windows(std::uint64_t bytes) {
  const auto inside = [&](std::uint64_t first, std::uint64_t end) {
    return std::clamp(bytes, first, end) - first;
  };
  Windows out;
  out.big = round_up(inside(0, kBigEnd), kBigWindow) / kBigWindow +
            round_up(inside(kSmallEnd, std::max(bytes, kSmallEnd)), kBigWindow) / kBigWindow;
  out.small = round_up(inside(kBigEnd, kSmallEnd), kSmallWindow) / kSmallWindow;
  return out;
}

}  // namespace example
