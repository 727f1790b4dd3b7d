// The kernel's answers to ioctls, given by the test: what a device file of VFIO says cannot be had
// without the kernel, but what our code makes of each answer can.
#pragma once

#include <functional>
#include <map>
#include <vector>

namespace vfio_test {

// While one lives, every ioctl of this process that it has an answer for gets it; all others go to
// the kernel. One at a time, one thread.
class ScriptedIoctls {
 public:
  // What the kernel would give: 0 or more, or -errno.
  using Answer = std::function<int(int fd, void* argument)>;

  ScriptedIoctls();
  ~ScriptedIoctls();
  ScriptedIoctls(const ScriptedIoctls&) = delete;

  void on(unsigned long request, Answer answer) { answers_[request] = std::move(answer); }
  void on(unsigned long request, int result) {
    on(request, [result](int, void*) { return result; });
  }
  // Answered ones, in their order.
  const std::vector<unsigned long>& calls() const { return calls_; }

  // Of ioctl() itself.
  const Answer* answer(unsigned long request);

 private:
  std::map<unsigned long, Answer> answers_;
  std::vector<unsigned long> calls_;
};

}  // namespace vfio_test
