#include "tools/bench/machine.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

namespace bench {
namespace {

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) {
      const auto colon = line.find(": ");
      if (colon != std::string::npos) return line.substr(colon + 2);
    }
  return "unknown processor";
}

std::uint64_t clock_ticks(const timeval& time) {
  const auto per_second = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  return static_cast<std::uint64_t>(time.tv_sec) * per_second +
         static_cast<std::uint64_t>(time.tv_usec) * per_second / 1'000'000;
}

}  // namespace

bool pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return ::sched_setaffinity(0, sizeof(set), &set) == 0;
}

std::string machine_text() {
  utsname system{};
  ::uname(&system);
  return processor() + ", " + std::to_string(::sysconf(_SC_NPROCESSORS_ONLN)) + " cores, Linux " +
         system.release;
}

std::string idle_policy_text() {
  std::int32_t latency = -1;
  const int fd = ::open("/dev/cpu_dma_latency", O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    if (::read(fd, &latency, sizeof(latency)) != sizeof(latency)) latency = -1;
    ::close(fd);
  }
  std::string text = latency == 0 ? "idle cores poll (cpu_dma_latency 0)" : "idle cores halt";
  const auto governor = first_line("/sys/devices/system/cpu/cpuidle/current_governor");
  if (!governor.empty()) text += ", cpuidle " + governor;
  const auto poll = first_line("/sys/module/haltpoll/parameters/guest_halt_poll_ns");
  if (!poll.empty()) text += ", guest_halt_poll_ns " + poll;
  return text;
}

Disturbance::Disturbance() : start_(read()) {}

Disturbance::Times Disturbance::read() {
  std::ifstream file("/proc/stat");
  std::string cpu;
  std::uint64_t user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0, steal = 0;
  file >> cpu >> user >> nice >> system >> idle >> wait >> irq >> soft >> steal;
  rusage own{};
  ::getrusage(RUSAGE_SELF, &own);
  Times times;
  times.busy = user + nice + system + irq + soft;
  times.stolen = steal;
  times.all = times.busy + idle + wait + steal;
  times.own = clock_ticks(own.ru_utime) + clock_ticks(own.ru_stime);
  return times;
}

std::string Disturbance::text() const {
  const auto now = read();
  const auto all = static_cast<double>(now.all - start_.all);
  if (all <= 0) return "";
  const auto share = [&](std::uint64_t part) { return 100 * static_cast<double>(part) / all; };
  char text[160];
  std::snprintf(text, sizeof(text),
                "stolen by the host %.1f %%, machine busy %.0f %%, of which bench %.0f %%",
                share(now.stolen - start_.stolen), share(now.busy - start_.busy),
                share(now.own - start_.own));
  return text;
}

}  // namespace bench
