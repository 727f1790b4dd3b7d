#include "tests/whole/system.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>

namespace whole {
namespace {

using nlohmann::json;

struct Counter {
  const char* group;  // "" for the server's own
  const char* name;
  Mistake mistake;
};
constexpr Counter kCounters[] = {
    {"", "dma_refused", Mistake::kBusError},
    {"model", "hubs.bus_errors", Mistake::kBusError},
    {"model", "ih.lost_writes", Mistake::kBusError},
    {"model", "psp.lost_accesses", Mistake::kBusError},
    {"model", "vram.poison_reads", Mistake::kPoisonRead},
    {"model", "hubs.flushes_without_semaphore", Mistake::kProtocol},
    {"model", "ih.bad_pointers", Mistake::kProtocol},
    {"model", "psp.bad_pointers", Mistake::kProtocol},
};

// Beyond what a loaded machine does to a turn that is not long. Sanitizers make all turns long.
#if defined(GPUUMD_SANITIZED)
constexpr const char* kTurnLimitMs = "0";
#else
constexpr const char* kTurnLimitMs = "250";
#endif

std::vector<std::string> words_of(const char* variable) {
  const char* text = std::getenv(variable);
  std::istringstream words(text != nullptr ? text : "");
  return {std::istream_iterator<std::string>(words), {}};
}

// Ends the test here, which has been skipped or has failed already: GoogleTest takes this exception
// for one that was reported.
[[noreturn]] void end_test() {
  throw ::testing::AssertionException(
      {::testing::TestPartResult::kSkip, __FILE__, __LINE__, "reported"});
}

[[noreturn]] void skip(const std::string& why) {
  [&] { GTEST_SKIP() << why; }();
  end_test();
}

// Why a test cannot run with the given devices; empty when it can.
std::string what_given_devices_lack(const SystemOptions& options) {
  const auto devices = given_devices(), model = words_of("GPUUMD_TEST_MODEL");
  if (options.gpus > devices.size())
    return "needs " + std::to_string(options.gpus) + " devices, and " +
           std::to_string(devices.size()) + " are given";
  for (const auto& [name, value] : options.model)
    if (std::ranges::count(model, name + "=" + value) == 0)
      return "needs a model with " + name + "=" + value + ", and the given devices are another's";
  return "";
}

}  // namespace

std::vector<std::string> given_devices() { return words_of("GPUUMD_TEST_DEVICES"); }

void System::SetUp() {
  std::string pattern = std::filesystem::temp_directory_path() / "gpuumd-test-XXXXXX";
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  directory_ = pattern;
}

std::string System::runtime_dir(unsigned node) const {
  return directory_ + "/node" + std::to_string(node);
}

void System::start(SystemOptions options) {
  options_ = std::move(options);
  if (given_.empty())
    start_model();
  else if (const auto lacks = what_given_devices_lack(options_); !lacks.empty())
    skip(lacks);
  if (HasFatalFailure()) end_test();
  for (unsigned node = 0; node < options_.gpus; ++node) {
    start_daemon(node);
    if (HasFatalFailure()) end_test();
  }
}

void System::start_model() {
  const char* bar0 = std::getenv("GPUUMD_TEST_BAR0");
  if (bar0 != nullptr && !options_.model.contains("bar0")) options_.model["bar0"] = bar0;
  std::filesystem::create_directory(directory_ + "/sim");
  std::vector<std::string> arguments{"--dir", directory_ + "/sim", "--gpus",
                                     std::to_string(options_.gpus)};
  for (const auto& [name, value] : options_.model) {
    arguments.push_back("--" + name);
    arguments.push_back(value);
  }
  model_ =
      std::make_unique<Process>(Process::start("gpusim", arguments, directory_ + "/gpusim.log"));
  ASSERT_TRUE(model_->line_with("ready")) << model_->log();
}

std::string System::device_name(unsigned node) const {
  return given_.empty() ? "vfio-user:" + directory_ + "/sim/gpu" + std::to_string(node) + ".sock"
                        : given_.at(node);
}

void System::start_daemon(unsigned node) {
  std::vector<std::string> arguments{"--device",        device_name(node), "--runtime-dir",
                                     runtime_dir(node), "--turn-limit-ms", kTurnLimitMs};
  arguments.insert(arguments.end(), options_.daemon.begin(), options_.daemon.end());
  auto process = std::make_unique<Process>(
      Process::start("gpuumd", arguments, directory_ + "/gpuumd" + std::to_string(node) + ".log"));
  ASSERT_TRUE(process->line_with("gpuumd: ready")) << process->log();
  daemons_[node] = std::move(process);
}

void System::kill_daemon(unsigned node) {
  daemon(node).signal(SIGKILL);
  EXPECT_EQ(daemon(node).wait(), 128 + SIGKILL) << "gpuumd " << node << " had ended before";
  if (HasFailure()) std::fprintf(stderr, "gpuumd %u:\n%s\n", node, daemon(node).log().c_str());
  daemons_.erase(node);
  // Its engines were at work, and their memory went with it.
  expect(Mistake::kBusError);
}

void System::end_daemon(unsigned node, int code) {
  EXPECT_EQ(daemon(node).stop(), code) << daemon(node).log();
  daemons_.erase(node);
}

void System::kill_model() {
  model().signal(SIGKILL);
  EXPECT_EQ(model().wait(), 128 + SIGKILL) << "gpusim had ended before";
  model_.reset();
}

void System::TearDown() {
  for (auto& [node, process] : daemons_) {
    const auto code = process->stop();
    EXPECT_EQ(code, 0) << "gpuumd " << node << ":\n" << process->log();
    if (HasFailure()) std::fprintf(stderr, "gpuumd %u:\n%s\n", node, process->log().c_str());
  }
  daemons_.clear();
  report_long_turns();
  if (model_) {
    check_mistakes();
    const auto code = model_->stop();
    EXPECT_EQ(code, 0) << "gpusim:\n" << model_->log();
    if (HasFailure()) std::fprintf(stderr, "gpusim:\n%s\n", model_->log().c_str());
    model_.reset();
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

std::map<Mistake, std::string> System::mistakes() {
  std::map<Mistake, std::string> found;
  if (!given_.empty()) return found;
  const auto answer = json::parse(control(R"({"command": "counters"})"));
  for (const json& gpu : answer.at("gpus"))
    for (const auto& [group, name, mistake] : kCounters) {
      const auto count = (*group == 0 ? gpu : gpu.at(group)).at(name).get<std::uint64_t>();
      if (count == 0) continue;
      found[mistake] +=
          " " + std::to_string(count) + " " + name + " of GPU " + gpu.at("gpu").dump();
    }
  return found;
}

void System::check_mistakes() {
  for (const auto& [mistake, counted] : mistakes())
    EXPECT_TRUE(expected_.contains(mistake)) << "the model counted" << counted;
}

// Printed and no more: a machine may be slower than any limit.
void System::report_long_turns() const {
  for (const auto& file : std::filesystem::directory_iterator(directory_)) {
    std::ifstream log(file.path());
    unsigned turns = 0;
    for (std::string line; file.path().extension() == ".log" && std::getline(log, line);)
      if (line.find("handler \"") != std::string::npos) ++turns;
    if (turns != 0)
      std::printf("%s: %u reactor turns of more than %s ms\n", file.path().stem().c_str(), turns,
                  kTurnLimitMs);
  }
}

gpuumd::Client System::connect(unsigned node, const std::string& name) {
  return must(gpuumd::Client::connect(runtime_dir(node), name, 20s));
}

gpuumd::Device System::open(gpuumd::Client& client) { return must(client.open_device(0u)); }

std::uint64_t System::number(unsigned node, std::uint32_t query,
                             const std::vector<std::string>& path) {
  auto client = connect(node, "counter");
  auto value = json::parse(must(client.query(query, 0)));
  if (value.is_array()) value = value.at(0);
  for (const auto& key : path) value = value.at(key);
  return value.get<std::uint64_t>();
}

std::string System::control(const std::string& command) {
  if (!given_.empty()) skip("gives the model a command, and the given devices are another's");
  auto ctl =
      Process::start("gpusim", {"ctl", directory_ + "/sim", command}, directory_ + "/ctl.log");
  const auto line = ctl.line_with("");
  EXPECT_TRUE(line.has_value()) << command << ": " << ctl.log();
  (void)ctl.wait();
  return line.value_or("");
}

std::vector<std::byte> random_bytes(std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const auto word = random();
    std::memcpy(out.data() + i, &word, std::min<std::size_t>(8, bytes - i));
  }
  return out;
}

}  // namespace whole
