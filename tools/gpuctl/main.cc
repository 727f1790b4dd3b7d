// gpuctl: shows what a gpuumd daemon does, and binds devices for one (docs/gpuctl.md).
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "tools/gpuctl/demo.h"
#include "tools/gpuctl/exit_code.h"
#include "tools/gpuctl/machine.h"
#include "tools/gpuctl/render.h"
#include "tools/gpuctl/snapshot.h"

namespace {

using namespace gpuctl;

constexpr double kQueryTimeout = 5;  // seconds
constexpr double kDemoTimeout = 60;
constexpr double kBindTimeout = 60;  // a driver may take long to let go
constexpr double kMaxTimeout = 86400;
constexpr std::uint64_t kMaxDemoMib = 1024;

struct Arguments {
  Target target;
  double timeout = 0;  // seconds; 0: the verb's own
  bool json = false;
  std::uint64_t demo_mib = 16;
  Machine machine;
  BindRequest bind;
};

void add_common(CLI::App& app, Arguments& arguments) {
  app.add_option("--runtime-dir", arguments.target.runtime_dir,
                 "of the daemon ($GPUUMD_RUNTIME_DIR, else /run/gpuumd)");
  app.add_option("--timeout", arguments.timeout,
                 "seconds for the whole command (5; demo, bind, unbind: 60)")
      // Not NaN either, which no comparison keeps out.
      ->check(CLI::Range(0.001, kMaxTimeout) &
              CLI::Validator(
                  [](const std::string& text) {
                    return text.find_first_of("nN") == std::string::npos ? std::string()
                                                                         : "not a number: " + text;
                  },
                  ""));
  app.add_option("--device", arguments.target.device, "index or name; all without it");
  app.add_flag("--json", arguments.json, "JSON instead of tables");
}

int report(const Failure& failure) {
  std::fprintf(stderr, "gpuctl: %s\n", failure.text.c_str());
  return failure.code;
}

int print(const Outcome<nlohmann::json>& document, bool as_json) {
  if (!document) return report(document.error());
  // Names come from clients, who may give what is no UTF-8.
  std::string text;
  if (as_json)
    text = document->dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  else
    text = document->contains("runtime_dir") ? render(*document) : render_machine(*document);
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    return report({kFailed, "standard output cannot be written"});
  return kOk;
}

std::chrono::nanoseconds patience(const Arguments& arguments, double otherwise) {
  const double seconds = arguments.timeout != 0 ? arguments.timeout : otherwise;
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

int run_query(const Verb& verb, Arguments arguments) {
  arguments.target.timeout = patience(arguments, kQueryTimeout);
  ExitCode worst = kOk;
  const int printed = print(take_snapshot(verb, arguments.target, worst), arguments.json);
  return printed != kOk ? printed : worst;
}

int run_demonstration(Arguments arguments) {
  arguments.target.timeout = patience(arguments, kDemoTimeout);
  return print(gpuctl::run_demo(arguments.target, arguments.demo_mib << 20), arguments.json);
}

int run_doctor(const Arguments& arguments) {
  const auto document = examine(arguments.machine, shown_dir(arguments.target));
  const int printed = print(document, arguments.json);
  if (printed != kOk) return printed;
  return (*document)["problems"] == 0 ? kOk : kFailed;
}

// The plan is shown before it is carried out, unless only JSON is wanted.
int run_bind(Arguments arguments, bool binds) {
  arguments.bind.binds = binds;
  arguments.bind.patience =
      std::chrono::ceil<std::chrono::milliseconds>(patience(arguments, kBindTimeout));
  const auto show = [&](const nlohmann::json& plan) {
    if (!arguments.json) print(plan, false);
  };
  return print(bind_devices(arguments.machine, arguments.bind, show), arguments.json);
}

void add_machine_options(CLI::App& verb, Arguments& arguments) {
  verb.add_option("--sysroot", arguments.machine.sysroot,
                  "look at DIR/sys, DIR/dev and DIR/proc, not at this machine's");
}

struct LocalVerbs {
  CLI::App* devices;
  CLI::App* doctor;
  CLI::App* bind;
  CLI::App* unbind;
};

LocalVerbs add_local_verbs(CLI::App& app, Arguments& arguments) {
  LocalVerbs verbs{
      app.add_subcommand("devices", "GPUs of this machine, and whether a daemon can use them"),
      app.add_subcommand("doctor", "what keeps this machine from giving a device to a daemon"),
      app.add_subcommand("bind", "take devices for vfio-pci; shows the plan, --yes does it"),
      app.add_subcommand("unbind", "give devices back; shows the plan, --yes does it")};
  for (auto* verb : {verbs.devices, verbs.doctor, verbs.bind, verbs.unbind})
    add_machine_options(*verb, arguments);
  verbs.devices->add_flag("--any", arguments.bind.any, "devices of every kind");
  for (auto* verb : {verbs.bind, verbs.unbind}) {
    verb->add_option("devices", arguments.bind.devices, "PCI addresses: 0000:03:00.0")->required();
    verb->add_flag("--yes", arguments.bind.yes, "do it");
    verb->add_option("--state-dir", arguments.machine.state_dir,
                     "where old drivers are remembered (/var/lib/gpuumd)");
  }
  verbs.bind->add_flag("--any", arguments.bind.any, "a device that gpuumd does not drive, too");
  verbs.bind->add_flag("--accept-deadly-reset", arguments.bind.accept_deadly_reset,
                       "a part that does not survive being closed, too");
  return verbs;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"gpuctl: shows what a gpuumd daemon does, and binds devices for one"};
  app.require_subcommand(1);
  app.fallthrough();  // options may stand before the verb or after it
  Arguments arguments;
  add_common(app, arguments);
  for (const auto& verb : verbs()) app.add_subcommand(verb.name, verb.help);
  const auto local = add_local_verbs(app, arguments);
  CLI::App* demo = app.add_subcommand("demo", "a copy with page faults on one device, checked");
  demo->add_option("--mib", arguments.demo_mib, "MiB to copy (16)")
      ->check(CLI::Range(std::uint64_t{1}, kMaxDemoMib));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::RequiredError& error) {
    // What is no verb is left over, and not what CLI11 complains about first.
    const auto left = app.remaining();
    const std::string what =
        left.empty() ? error.what() : "no such verb or option: " + left.front();
    std::fprintf(stderr, "gpuctl: %s (gpuctl --help)\n", what.c_str());
    return kUsage;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "gpuctl: %s (gpuctl --help)\n", error.what());
    return kUsage;
  }
  for (const auto& verb : verbs())
    if (app.got_subcommand(verb.name)) return run_query(verb, arguments);
  if (app.got_subcommand(local.devices))
    return print(list_devices(arguments.machine, arguments.target.device, arguments.bind.any),
                 arguments.json);
  if (app.got_subcommand(local.doctor)) return run_doctor(arguments);
  if (app.got_subcommand(local.bind)) return run_bind(arguments, true);
  if (app.got_subcommand(local.unbind)) return run_bind(arguments, false);
  return run_demonstration(arguments);
}
