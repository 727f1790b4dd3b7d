#include "scripted_ioctl.h"

#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>

namespace vfio_test {
namespace {

ScriptedIoctls* script = nullptr;

}  // namespace

ScriptedIoctls::ScriptedIoctls() { script = this; }
ScriptedIoctls::~ScriptedIoctls() { script = nullptr; }

const ScriptedIoctls::Answer* ScriptedIoctls::answer(unsigned long request) {
  const auto it = answers_.find(request);
  if (it == answers_.end()) return nullptr;
  calls_.push_back(request);
  return &it->second;
}

}  // namespace vfio_test

// The program's own, in place of the C library's.
extern "C" int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  using vfio_test::script;
  const auto* const answer = script == nullptr ? nullptr : script->answer(request);
  if (answer == nullptr) return static_cast<int>(::syscall(SYS_ioctl, fd, request, argument));
  const int result = (*answer)(fd, argument);
  if (result >= 0) return result;
  errno = -result;
  return -1;
}
