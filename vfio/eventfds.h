// The eventfds by which interrupts come.
#pragma once

#include <span>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace vfio {

// Neither blocks nor is inherited. kSystem when the process has no descriptor left; `step` names
// what it was for.
base::Result<base::UniqueFd> make_eventfd(const char* step = "eventfd of an interrupt");

// One for each of `count` interrupts; all or none.
base::Result<std::vector<base::UniqueFd>> make_eventfds(unsigned count);

// Their numbers, in order: for a call that tells them to the kernel or a server.
std::vector<int> numbers_of(std::span<const base::UniqueFd> eventfds);

}  // namespace vfio
