// gpuumd-bench: costs of gpuumd beside the limits of the machine, measured in one run
// (docs/performance.md).
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>

#include "tools/bench/bench.h"

namespace bench {

Section::Section(const Context& context, const std::string& title, const std::string& placement)
    : bare_(context.bare) {
  const auto ping_pong = bare_.ping_pong(2000)();
  std::printf("\n%s\n  %s\n  line ping-pong %.0f ns\n", title.c_str(), placement.c_str(),
              ping_pong);
  std::fflush(stdout);
}

Section::~Section() {
  std::printf("  line ping-pong %.0f ns at the end; %s\n", bare_.ping_pong(2000)(),
              disturbance_.text().c_str());
  std::fflush(stdout);
}

namespace {

std::string time_text(double ns) {
  char text[32];
  if (ns < 1e3)
    std::snprintf(text, sizeof(text), "%.0f ns", ns);
  else if (ns < 1e6)
    std::snprintf(text, sizeof(text), "%.2f us", ns / 1e3);
  else
    std::snprintf(text, sizeof(text), "%.2f ms", ns / 1e6);
  return text;
}

std::string spread_text(const Spread& ns) {
  if (ns.low == ns.high) return time_text(ns.median);
  return time_text(ns.median) + " (" + time_text(ns.low) + ".." + time_text(ns.high) + ")";
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
  return text;
}

struct Benchmarks {
  bool trap = false, ping = false, map = false, fault = false, import = false, copy = false,
       wake = false;
};

void run(Context& context, const Benchmarks& chosen) {
  if (chosen.trap) run_trap(context);
  if (chosen.ping) run_ping(context);
  if (chosen.map) run_map(context);
  if (chosen.fault) run_fault(context);
  if (chosen.wake && context.devices.empty()) run_wake(context);
  if (chosen.import || chosen.copy) {
    Pod pod(context);
    if (chosen.import) run_import(context, pod);
    if (chosen.copy) run_copy(context, pod);
  }
}

int run_in_directory(Context& context, const Benchmarks& chosen) {
  std::printf("gpuumd-bench, %s%s\n%s\n%s\n", today().c_str(), context.quick ? ", quick" : "",
              machine_text().c_str(), idle_policy_text().c_str());
  std::printf("medians of blocks, with the tenths at both ends in brackets\n");
  if (!pin(kClientCore) || ::sysconf(_SC_NPROCESSORS_ONLN) < 2)
    std::printf("warning: fewer than two cores: nothing here is comparable\n");
  const auto start = Clock::now();
  int code = 0;
  try {
    run(context, chosen);
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "gpuumd-bench: %s\n", error.what());
    code = 1;
  }
  const auto took = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start);
  std::printf("\n%lld s in all\n", static_cast<long long>(took.count()));
  return code;
}

}  // namespace

void print_cost(const std::string& what, const Spread& ns) {
  std::printf("  %-42s %s\n", what.c_str(), spread_text(ns).c_str());
  std::fflush(stdout);
}

void print_pairs(const std::string& what, const std::string& beside, const Pairs& pairs,
                 const std::string& aim) {
  const auto wanted = aim.empty() ? "" : "; aim <= " + aim;
  std::printf("  %-42s %s\n      %.2f x (%.2f..%.2f%s) %s: %s; %u pairs\n", what.c_str(),
              spread_text(pairs.one).c_str(), pairs.ratio.median, pairs.ratio.low, pairs.ratio.high,
              wanted.c_str(), beside.c_str(), spread_text(pairs.other).c_str(), pairs.count);
  std::fflush(stdout);
}

}  // namespace bench

int main(int argc, char** argv) {
  CLI::App app{"gpuumd-bench: what gpuumd costs beside the limits of the machine"};
  bool quick = false;
  std::string bin = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  std::vector<std::string> names;
  const std::vector<std::string> known = {"trap", "ping", "map", "fault", "wake", "import", "copy"};
  std::vector<std::string> devices;
  app.add_flag("--quick", quick, "fewer blocks: to see that it runs, not to compare");
  app.add_option("--bin", bin, "where gpuumd and gpusim are (beside this program)");
  app.add_option("--device", devices,
                 "a device to use in place of a model of its own, as gpuumd's; two for import and "
                 "copy; wake is left out")
      ->allow_extra_args(false);
  app.add_option("benchmark", names, "trap, ping, map, fault, wake, import, copy (all)")
      ->check(CLI::IsMember(known));
  CLI11_PARSE(app, argc, argv);
  if (names.empty()) names = known;
  const auto chosen = [&](const char* name) { return std::ranges::count(names, name) != 0; };

  std::string directory = std::filesystem::temp_directory_path() / "gpuumd-bench-XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr) {
    std::perror("gpuumd-bench: temporary directory");
    return 1;
  }
  int code = 1;
  auto bare = bench::BareServer::start(bench::kServerCore);  // forks, so before there are threads
  if (bare) {
    bench::Context context{quick, bin, directory, devices, **bare};
    code = bench::run_in_directory(
        context, {chosen("trap"), chosen("ping"), chosen("map"), chosen("fault"), chosen("import"),
                  chosen("copy"), chosen("wake")});
  } else {
    std::fprintf(stderr, "gpuumd-bench: %s\n", bare.error().message().c_str());
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  return code;
}
