// Limits of the process and of the machine that the daemon runs into.
#include <unistd.h>

#include <cstdio>

#include "vfio/sysfs/doctor.h"

namespace vfio::sysfs::doctor {
namespace {

// What a daemon needs of it to start, for each device: its rings, in one chunk. All else comes with
// clients.
constexpr std::uint64_t kLeastMemlock = std::uint64_t{2} << 20;

std::string readable(std::uint64_t bytes) {
  const bool small = bytes < std::uint64_t{1} << 20;
  return std::to_string(bytes >> (small ? 10 : 20)) + (small ? " KiB" : " MiB");
}

}  // namespace

Check check_memlock(const Surroundings& surroundings) {
  Check check{"memlock"};
  if (!surroundings.may_lock_all && !surroundings.memlock_known) {
    check.level = Level::kWarning;
    check.found = "not known: no /proc/self/limits";
    check.remedy = "run gpuctl doctor on the machine itself, as the daemon's user";
    return check;
  }
  if (surroundings.may_lock_all || !surroundings.memlock_bytes) {
    check.found = surroundings.may_lock_all ? "no limit for this user (CAP_IPC_LOCK)" : "no limit";
    return check;
  }
  const auto limit = *surroundings.memlock_bytes;
  check.level = limit < kLeastMemlock ? Level::kProblem : Level::kWarning;
  check.found = readable(limit) +
                (limit < kLeastMemlock
                     ? ": less than the 2 MiB that a daemon needs for each device to start"
                     : ": all host memory that devices of this user can reach counts against it, "
                       "clients' buffers too");
  check.remedy =
      "LimitMEMLOCK=infinity in the daemon's systemd unit, or \"memlock unlimited\" in "
      "/etc/security/limits.conf, or the capability CAP_IPC_LOCK";
  return check;
}

Check check_huge_pages(const Roots& roots) {
  Check check{"huge pages"};
  const auto pool = roots.sys + "/kernel/mm/hugepages/hugepages-2048kB";
  const auto free = read_number(pool + "/free_hugepages");
  const auto shmem =
      read_text(roots.sys + "/kernel/mm/transparent_hugepage/shmem_enabled").value_or("");
  bool transparent = false;
  for (const auto* way : {"[always]", "[within_size]", "[force]"})
    transparent = transparent || shmem.find(way) != std::string::npos;
  check.found = free ? std::to_string(*free) + " of 2 MiB free" : "no pool of 2 MiB pages";
  check.found += transparent ? "; shared memory has transparent ones" : "";
  if (transparent || (free && *free > 0)) return check;
  check.level = Level::kWarning;
  check.found += ": system memory is mapped for devices in pages of 4 KiB, which takes longer";
  check.remedy =
      "echo within_size > /sys/kernel/mm/transparent_hugepage/shmem_enabled, or sysctl "
      "vm.nr_hugepages=N";
  return check;
}

Check check_io_uring(const Roots& roots) {
  Check check{"io_uring"};
  const auto value = read_text(roots.proc + "/sys/kernel/io_uring_disabled").value_or("0");
  check.found = "allowed";
  if (value == "0") return check;
  check.level = value == "1" ? Level::kWarning : Level::kProblem;
  check.found = value == "1" ? "allowed to privileged processes and one group" : "switched off";
  check.remedy = value == "1" ? "run the daemon as root, or in the group of sysctl "
                                "kernel.io_uring_group"
                              : "sysctl kernel.io_uring_disabled=0";
  return check;
}

Check check_runtime_dir(const Surroundings& surroundings) {
  Check check{"runtime directory"};
  const auto& path = surroundings.runtime_dir;
  if (exists(path + "/gpuumd.sock")) {
    check.found = path + ": a daemon's socket is in it";
    return check;
  }
  const auto slash = path.find_last_of('/');
  const auto parent = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  const bool there = exists(path);
  if (::access((there ? path : parent).c_str(), W_OK | X_OK) == 0) {
    check.found = path + (there ? ": this user may use it" : ": the daemon makes it");
    return check;
  }
  check.level = Level::kWarning;
  check.found = path + (there ? ": this user may not write there" : ": this user may not make it");
  check.remedy = "RuntimeDirectory=gpuumd in the daemon's systemd unit, or --runtime-dir";
  return check;
}

}  // namespace vfio::sysfs::doctor
