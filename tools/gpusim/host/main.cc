// gpusim: a pod of modelled GPUs as a process, and `gpusim ctl` to talk to one.

#include <fcntl.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <map>

#include "tools/gpusim/host/assembly.h"
#include "tools/gpusim/host/process.h"
#include "tools/gpusim/host/steady_clock.h"

namespace {

constexpr int kFailed = 1;
constexpr int kRefused = 2;  // the control socket answered "ok": false

gpusim::ProcessHost* running = nullptr;

void on_signal(int) { running->stop(); }

int fail(const base::Error& error) {
  std::fprintf(stderr, "gpusim: %s\n", error.message().c_str());
  return kFailed;
}

int run(const gpusim::PodSetup& setup, const gpusim::ProcessOptions& options) {
  if (const auto valid = setup.check(); !valid) return fail(valid.error());
  const gpusim::SteadyClock clock;
  auto pod = gpusim::Pod::create(gpusim::gpu_pod(setup), clock);
  if (!pod) return fail(pod.error());
  auto host = gpusim::ProcessHost::open(std::move(*pod), options);
  if (!host) return fail(host.error());

  running = host->get();
  std::signal(SIGTERM, on_signal);
  std::signal(SIGINT, on_signal);
  std::signal(SIGPIPE, SIG_IGN);
  std::printf("seed %llu bases %llu\n", static_cast<unsigned long long>(setup.gpu.seed),
              static_cast<unsigned long long>(setup.gpu.bases_seed));
  for (const std::string& path : (*host)->sockets()) std::printf("%s\n", path.c_str());
  std::printf("ready\n");
  std::fflush(stdout);
  const auto ended = (*host)->run();
  std::signal(SIGTERM, SIG_IGN);
  std::signal(SIGINT, SIG_IGN);
  return ended ? 0 : fail(ended.error());
}

int control(const std::string& directory, const std::string& command) {
  const auto answer = gpusim::control_once(directory, command);
  if (!answer) return fail(answer.error());
  std::printf("%s\n", answer->c_str());
  return answer->find("\"ok\":true") != std::string::npos ? 0 : kRefused;
}

// Options of the model go through PodSetup, as those of a `sim:...` name do.
void add_model_options(CLI::App& app, gpusim::PodSetup& setup) {
  static const std::map<std::string, std::string> kHelp = {
      {"gpus", "GPUs on the switch, 1 to 64 (1)"},
      {"vram", "local memory of each (1G)"},
      {"bar0", "size of BAR 0, or \"vram\" (64M)"},
      {"xccs", "compute dies with a GFXHUB each (2)"},
      {"mids", "memory dies with an MMHUB each (2)"},
      {"sdma", "copy engines a compute die (2)"},
      {"seed", "of reset values and of the order of accesses (1)"},
      {"bases", "seed of the register bases, 0 for the nominal ones (1)"},
      {"bases64", "64-bit bases in the discovery table, on or off (off)"},
      {"major", "version of the discovery binary, 1 or 2 (1)"},
      {"discovery", "where the discovery table is named: top or scratch (top)"},
      {"interrupts", "what the PCI function has: msix, intx or none (msix)"},
      {"flr", "function-level reset: on, off, or deaf: says that it has reset and has not (on)"},
      {"gone_after", "accesses to registers after which the function is gone; 0: never (0)"},
      {"stall", "what a retry fault holds up: queue or instance (queue)"},
      {"hdp", "when stores through BAR 0 reach engines: strict or off (strict)"},
      {"revision", "silicon revision (0)"},
      {"pod", "file with the fabric configuration of each GPU, or \"default\", or \"none\""},
      {"listen-fabric", "socket at which other gpusim processes join this one's switch"},
      {"join-fabric", "such a socket of another gpusim process"},
      {"addr_mode", "of the default pod: alias or ident (alias)"},
  };
  for (const auto& [name, help] : kHelp) {
    app.add_option_function<std::string>(
           "--" + name,
           [&setup, name = name](const std::string& value) {
             if (const auto done = setup.set(name, value); !done)
               throw CLI::ValidationError(done.error().message());
           },
           help)
        ->type_name("");
  }
}

}  // namespace

int main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_logger_st("gpusim"));
  CLI::App app{"gpusim: a pod of modelled GPUs, one vfio-user socket each"};
  gpusim::PodSetup setup;
  gpusim::ProcessOptions options;
  app.add_option("--dir", options.directory, "where the sockets go");
  app.add_option("--scenario", options.scenario_file, "control commands to run at the start");
  app.add_option("--log", options.log_file, "where the access log goes at the end");
  add_model_options(app, setup);

  CLI::App* ctl = app.add_subcommand("ctl", "send one command to a running gpusim");
  std::string directory;
  std::string command;
  ctl->add_option("DIR", directory, "its --dir")->required();
  ctl->add_option("JSON", command, "such as {\"command\": \"list\"}")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "gpusim: %s (gpusim --help)\n", error.what());
    return kFailed;
  }

  if (ctl->parsed()) return control(directory, command);
  if (options.directory.empty()) {
    std::fprintf(stderr, "gpusim: --dir is required\n");
    return kFailed;
  }
  return run(setup, options);
}
