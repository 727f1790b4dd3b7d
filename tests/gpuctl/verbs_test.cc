// gpuctl against a gpuumd process with the model inside.
#include <csignal>
#include <fstream>

#include "gpuumd/gpuumd.hpp"
#include "tests/gpuctl/run.h"
#include "tests/gpuctl/schema.h"
#include "tools/gpuctl/exit_code.h"

namespace {

using gpuctl_test::gpuctl;
using gpuctl_test::mismatch;
using nlohmann::json;

constexpr const char* kVerbs[] = {"list",    "status", "clients", "exports",
                                  "imports", "peers",  "faults"};

class GpuctlVerbs : public ::testing::Test {
 protected:
  void SetUp() override {
    daemon_.emplace(
        whole::Process::start("gpuumd", {"--device", "sim:vram=256M", "--runtime-dir", dir_.path()},
                              dir_.path() + "/log"));
    ASSERT_TRUE(daemon_->line_with("gpuumd: ready")) << daemon_->log();
    std::ifstream file(std::string(std::getenv("GPUUMD_SOURCE")) + "/tools/gpuctl/schema.json");
    schema_ = json::parse(file);
  }
  void TearDown() override { EXPECT_EQ(daemon_->stop(), 0) << daemon_->log(); }

  gpuctl_test::Ran run(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--runtime-dir", dir_.path(), "--timeout", "50"});
    return gpuctl(arguments);
  }
  // What `verb --json` gives, checked against the schema.
  json document(const std::string& verb) {
    const auto ran = run({verb, "--json"});
    EXPECT_EQ(ran.code, gpuctl::kOk) << verb << ": " << ran.error;
    const auto out = json::parse(ran.out, nullptr, false);
    auto frame = schema_;
    auto device = frame["$defs"]["device"];
    const auto& own = frame["$defs"][verb];
    device["required"].insert(device["required"].end(), own["required"].begin(),
                              own["required"].end());
    device["properties"].update(own["properties"]);
    frame["$defs"]["device"] = device;
    EXPECT_EQ(mismatch(frame, frame["$defs"]["daemon_document"], out), "")
        << verb << ": " << ran.out;
    return out;
  }

  gpuctl_test::TempDir dir_;
  std::optional<whole::Process> daemon_;
  json schema_;
};

TEST_F(GpuctlVerbs, JsonIsAsTheSchemaSaysAndMarksTheSimulatedDevice) {
  for (const std::string verb : kVerbs) {
    const auto out = document(verb);
    ASSERT_EQ(out["devices"].size(), 1u) << verb;
    EXPECT_EQ(out["devices"][0]["simulated"], true) << verb;
    EXPECT_EQ(out["devices"][0]["device"], "sim:vram=256M") << verb;
    EXPECT_EQ(out["verb"], verb);
  }
}

TEST_F(GpuctlVerbs, StatusShowsWhatTheDeviceWasOpenedBy) {
  const auto device = document("status")["devices"][0];
  EXPECT_EQ(device["backend"], "vfio-user");
  EXPECT_FALSE(device.contains("remarks")) << device["remarks"];
}

TEST_F(GpuctlVerbs, TablesMarkTheSimulatedDevice) {
  for (const auto* verb : kVerbs) {
    const auto ran = run({verb});
    EXPECT_EQ(ran.code, gpuctl::kOk) << ran.error;
    EXPECT_NE(ran.out.find("SIM"), std::string::npos) << verb << ":\n" << ran.out;
    EXPECT_NE(ran.out.find("sim:vram=256M"), std::string::npos) << verb << ":\n" << ran.out;
  }
}

TEST_F(GpuctlVerbs, DemoCopiesWithPageFaultsAndLeavesNothing) {
  const auto demo = document("demo");
  EXPECT_EQ(demo["devices"][0]["equal"], true);
  EXPECT_GT(demo["devices"][0]["faults_serviced"], 0);
  const auto after = document("faults");
  EXPECT_GE(after["devices"][0]["serviced"], demo["devices"][0]["faults_serviced"]);
  EXPECT_EQ(document("clients")["devices"][0]["clients"].size(), 0u);
  EXPECT_NE(run({"demo", "--mib", "1"}).out.find("equal"), std::string::npos);
}

TEST_F(GpuctlVerbs, ClientsShowsASessionAndWhatItOwns) {
  auto client = gpuumd::Client::connect(dir_.path(), "shown");
  ASSERT_TRUE(client) << client.error().text;
  auto device = client->open_device(0);
  ASSERT_TRUE(device) << device.error().text;
  const auto vm = device->create_vm();
  ASSERT_TRUE(vm) << vm.error().text;
  const auto clients = document("clients")["devices"][0]["clients"];
  ASSERT_EQ(clients.size(), 1u);
  EXPECT_EQ(clients[0]["name"], "shown");
  EXPECT_EQ(clients[0]["pid"], ::getpid());
  EXPECT_EQ(clients[0]["vms"], 1);
  EXPECT_NE(run({"clients"}).out.find("shown"), std::string::npos);
}

TEST_F(GpuctlVerbs, DeviceIsChosenByIndexOrName) {
  EXPECT_EQ(run({"list", "--device", "0"}).code, gpuctl::kOk);
  EXPECT_EQ(run({"list", "--device", "sim:vram=256M"}).code, gpuctl::kOk);
  for (const auto* other : {"1", "sim", "0x0", "-1"}) {
    const auto ran = run({"status", std::string("--device=") + other});
    EXPECT_EQ(ran.code, gpuctl::kNotFound) << ran.error;
    EXPECT_TRUE(ran.one_line()) << ran.error;
    EXPECT_NE(ran.error.find(other), std::string::npos) << ran.error;
  }
}

// It accepts connections (the kernel does) and never answers.
TEST_F(GpuctlVerbs, DaemonThatIsStoppedEndsTheCommandByItsDeadline) {
  daemon_->signal(SIGSTOP);
  for (const auto* verb : {"list", "status", "demo"}) {
    const auto ran = gpuctl({verb, "--runtime-dir", dir_.path(), "--timeout", "1"});
    EXPECT_TRUE(ran.code == gpuctl::kNoDaemon || ran.code == gpuctl::kTimeout)
        << ran.code << ran.error;
    EXPECT_TRUE(ran.one_line()) << ran.error;
  }
  daemon_->signal(SIGCONT);
}

}  // namespace
