#include "vfio/sysfs/tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>

#include "base/fd.h"

namespace vfio::sysfs {
namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

}  // namespace

Roots Roots::below(const std::string& directory) {
  if (directory.empty()) return {};
  return {directory + "/sys", directory + "/dev", directory + "/proc"};
}

base::Error system_error(const std::string& what, int error) {
  switch (error) {
    case ENOENT:
    case ENODEV:
    case ENXIO:
    case ENOTDIR:
      return {base::Errc::kNotFound, error, what};
    case EACCES:
    case EPERM:
    case EROFS:
      return {base::Errc::kPermission, error, what};
    case EBUSY:
      return {base::Errc::kBusy, error, what};
    default:
      return {base::Errc::kSystem, error, what};
  }
}

base::Result<std::string> read_text(const std::string& path, std::size_t limit) {
  // O_NONBLOCK: a FIFO in the place of an attribute does not hold us.
  const base::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return std::unexpected(system_error(path, errno));
  std::string text;
  char part[4096];
  while (text.size() < limit) {
    const auto got = ::read(file.get(), part, std::min(sizeof(part), limit - text.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::unexpected(system_error(path, errno));
    if (got == 0) break;
    text.append(part, static_cast<std::size_t>(got));
  }
  while (!text.empty() && (is_space(text.back()) || text.back() == 0)) text.pop_back();
  return text;
}

std::optional<std::uint64_t> parse_number(std::string_view text) {
  const int radix = text.starts_with("0x") ? 16 : 10;
  if (radix == 16) text.remove_prefix(2);
  std::uint64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value, radix);
  if (error != std::errc{} || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

base::Result<std::uint64_t> read_number(const std::string& path) {
  const auto text = read_text(path);
  if (!text) return std::unexpected(text.error());
  const auto value = parse_number(*text);
  if (!value)
    return base::fail(base::Errc::kProtocol,
                      path + " holds \"" + text->substr(0, 32) + "\", no number");
  return *value;
}

std::optional<std::string> link_name(const std::string& path) {
  char target[4096];
  const auto length = ::readlink(path.c_str(), target, sizeof(target));
  if (length <= 0) return std::nullopt;
  const std::string_view whole(target, static_cast<std::size_t>(length));
  return std::string(whole.substr(whole.rfind('/') + 1));  // npos + 1 is 0
}

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path.c_str()), ::closedir);
  if (!directory) return names;
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> out;
  std::size_t at = 0;
  while (at < text.size()) {
    const auto start =
        std::find_if_not(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(), is_space);
    const auto end = std::find_if(start, text.end(), is_space);
    if (start != end) out.emplace_back(start, end);
    at = static_cast<std::size_t>(end - text.begin());
  }
  return out;
}

std::vector<std::string> lines(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    out.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::string joined(const std::vector<std::string>& parts, std::string_view between) {
  std::string out;
  for (const auto& part : parts) {
    if (!out.empty()) out += between;
    out += part;
  }
  return out;
}

}  // namespace vfio::sysfs
