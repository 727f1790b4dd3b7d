#include "tests/whole/system.h"

#include <nlohmann/json.hpp>

#include <cstdlib>
#include <random>

namespace whole {
namespace {

using nlohmann::json;

}  // namespace

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
  for (unsigned node = 0; node < options_.gpus; ++node) start_daemon(node);
}

void System::start_daemon(unsigned node) {
  std::vector<std::string> arguments{
      "--device", "vfio-user:" + directory_ + "/sim/gpu" + std::to_string(node) + ".sock",
      "--runtime-dir", runtime_dir(node)};
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
  if (model_) {
    const auto code = model_->stop();
    EXPECT_EQ(code, 0) << "gpusim:\n" << model_->log();
    if (HasFailure()) std::fprintf(stderr, "gpusim:\n%s\n", model_->log().c_str());
    model_.reset();
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
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
