// Whether a machine can give a device to user space, and what to do where it cannot.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vfio/sysfs/tree.h"

namespace vfio::sysfs {

enum class Level : std::uint8_t {
  kOk,
  kWarning,  // works, with a limit or a danger that is said
  kProblem,  // no device can be used like this
};
const char* to_string(Level level);

struct Check {
  std::string name;
  Level level = Level::kOk;
  std::string found = {};   // what is so
  std::string remedy = {};  // what to do; empty when ok
};

// What is not in the trees: of the process that asks, and of the machine.
struct Surroundings {
  std::string kernel_release = {};                  // "6.18.44-1", of uname
  std::string machine = {};                         // "x86_64", of uname
  std::uint32_t uid = 0;                            // effective
  std::optional<std::uint64_t> memlock_bytes = {};  // RLIMIT_MEMLOCK; nullopt: no limit
  bool memlock_known = true;                        // else: nobody says what the limit is
  bool may_lock_all = false;                        // CAP_IPC_LOCK
  std::string runtime_dir = {};                     // of the daemon
};

// In a fixed order, each name once; a line "device ADDRESS" for each candidate at the end. Writes
// nothing, opens no device, needs no right.
std::vector<Check> examine_machine(const Roots& roots, const Surroundings& surroundings);

namespace doctor {  // the parts of examine_machine(), each in a file of its own

Check check_iommu(const Roots& roots);
Check check_interrupt_remapping(const Roots& roots, const Surroundings& surroundings);
Check check_unsafe_interrupts(const Roots& roots);
Check check_no_iommu_mode(const Roots& roots);

Check check_driver(const Roots& roots);
Check check_iommufd(const Roots& roots, const Surroundings& surroundings);
Check check_group_container(const Roots& roots);
Check check_nodes(const Roots& roots, const Surroundings& surroundings);

Check check_memlock(const Surroundings& surroundings);
Check check_huge_pages(const Roots& roots);
Check check_io_uring(const Roots& roots);
Check check_runtime_dir(const Surroundings& surroundings);

}  // namespace doctor
}  // namespace vfio::sysfs
