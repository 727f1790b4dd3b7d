// gpuctl: shows what a gpuumd daemon does (docs/gpuctl.md).
#include <CLI/CLI.hpp>
#include <cstdio>

#include "tools/gpuctl/demo.h"
#include "tools/gpuctl/exit_code.h"
#include "tools/gpuctl/render.h"
#include "tools/gpuctl/snapshot.h"

namespace {

using namespace gpuctl;

constexpr double kQueryTimeout = 5;  // seconds
constexpr double kDemoTimeout = 60;
constexpr double kMaxTimeout = 86400;
constexpr std::uint64_t kMaxDemoMib = 1024;

struct Arguments {
  Target target;
  double timeout = 0;  // seconds; 0: the verb's own
  bool json = false;
  std::uint64_t demo_mib = 16;
};

void add_common(CLI::App& app, Arguments& arguments) {
  app.add_option("--runtime-dir", arguments.target.runtime_dir,
                 "of the daemon ($GPUUMD_RUNTIME_DIR, else /run/gpuumd)");
  app.add_option("--timeout", arguments.timeout, "seconds for the whole command (5; demo: 60)")
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
  const auto text =
      as_json ? document->dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
              : render(*document);
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    return report({kFailed, "standard output cannot be written"});
  return kOk;
}

int run(const Verb* verb, Arguments arguments) {
  const double seconds =
      arguments.timeout != 0 ? arguments.timeout : (verb != nullptr ? kQueryTimeout : kDemoTimeout);
  arguments.target.timeout = std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
  if (verb == nullptr)
    return print(run_demo(arguments.target, arguments.demo_mib << 20), arguments.json);
  ExitCode worst = kOk;
  const int printed = print(take_snapshot(*verb, arguments.target, worst), arguments.json);
  return printed != kOk ? printed : worst;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"gpuctl: shows what a gpuumd daemon does"};
  app.require_subcommand(1);
  app.fallthrough();  // options may stand before the verb or after it
  Arguments arguments;
  add_common(app, arguments);
  for (const auto& verb : verbs()) app.add_subcommand(verb.name, verb.help);
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
    if (app.got_subcommand(verb.name)) return run(&verb, arguments);
  return run(nullptr, arguments);
}
