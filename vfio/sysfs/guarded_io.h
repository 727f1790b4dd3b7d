// Attributes that may hang. A write to driver/unbind waits until everybody has let go of the
// device, and while it waits it holds the device's lock, for which other attributes then wait; a
// process that waits so cannot be killed. Therefore a child process does the access: when it does
// not come back in time it is left to the kernel, and we go on and can end. The child holds no
// descriptor of ours, so nobody who reads our output waits for it.
//
// Any thread; forks.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "base/result.h"

namespace vfio::sysfs {

// As read_text(), at most 4 KiB; kTimeout when the kernel does not answer by then.
base::Result<std::string> read_guarded(const std::string& path, std::chrono::milliseconds patience);

// One write() of all of `text`. Errors as of system_error(), of open or write; kTimeout when the
// kernel has not taken it by then: it may take it later.
base::Result<void> write_guarded(const std::string& path, std::string_view text,
                                 std::chrono::milliseconds patience);

}  // namespace vfio::sysfs
