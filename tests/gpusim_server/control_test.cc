// Control commands, scenario files, the access log.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fake_gpu_device.h"
#include "tools/gpusim/host/control.h"
#include "tools/gpusim/host/steady_clock.h"

namespace gpusim::testing {
namespace {

class Controlled : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/gpusim-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory); }
  static base::Result<PodParts> make(ScenarioHooks&, AccessLog&, const ModelClock&) {
    PodParts parts;
    for (int i = 0; i < 2; ++i) parts.gpus.push_back(std::make_unique<FakeGpuDevice>());
    return parts;
  }
  nlohmann::json run(const std::string& line) { return nlohmann::json::parse(control.run(line)); }
  std::string file(const std::string& text) {
    std::ofstream(directory + "/scenario") << text;
    return directory + "/scenario";
  }

  std::string directory;
  SteadyClock clock;
  std::unique_ptr<Pod> pod = Pod::create(make, clock).value();
  Control control{*pod};
};

TEST_F(Controlled, HooksGetTheirGpuAndArguments) {
  std::vector<std::string> seen;
  for (unsigned gpu = 0; gpu < 2; ++gpu) {
    pod->hooks().add(gpu, "test.hook", "for this test",
                     [&seen, gpu](const ScenarioValues& v) -> base::Result<ScenarioValues> {
                       seen.push_back(std::to_string(gpu) + v.text("name").value_or("-") +
                                      std::to_string(v.number_or("count", 7).value_or(0)));
                       ScenarioValues answer;
                       answer.set("done", true);
                       answer.set("count", std::uint64_t{3});
                       answer.set("word", "x");
                       return answer;
                     });
  }
  const auto answer = run(R"({"command":"test.hook","gpu":1,"name":"n","count":"0x10"})");
  EXPECT_EQ(answer, (nlohmann::json{{"ok", true}, {"done", true}, {"count", 3}, {"word", "x"}}));
  run(R"({"command":"test.hook"})");
  EXPECT_EQ(seen, (std::vector<std::string>{"1n16", "0-7"}));
  EXPECT_EQ(run(R"({"command":"list"})")["commands"]["test.hook"], "for this test");
  EXPECT_FALSE(run(R"({"command":"test.hook","gpu":2})")["ok"].get<bool>());
  pod->hooks().remove(0);
  EXPECT_FALSE(run(R"({"command":"test.hook"})")["ok"].get<bool>());
  pod->hooks().remove(1);
}

TEST_F(Controlled, BadCommandsSayWhy) {
  for (const char* line :
       {"", "{", "[]", "{}", R"({"command":3})", R"({"command":"no.such"})",
        R"({"command":"list","argument":[1]})", R"({"command":"list","argument":-1})", "\xff\xfe",
        R"({"command":"log","gpu":"many"})", R"({"command":"write_log"})",
        R"({"command":"write_log","path":"/proc/none/here"})"}) {
    const auto answer = run(line);
    EXPECT_EQ(answer["ok"], false) << line;
    EXPECT_FALSE(answer["error"].get<std::string>().empty());
  }
}

TEST_F(Controlled, AccessLogIsAskedFor) {
  Access access;
  access.time = ModelTime(5);
  access.gpu = 1;
  access.engine = "sdma0.0 q1";
  access.kind = AccessKind::kRemote;
  access.bytes = 100;
  access.address = 0x1234;
  for (int i = 0; i < 3; ++i) pod->log().add(access);
  access.outcome = Outcome::kRefused;
  pod->log().add(access);
  const auto log = run(R"({"command":"log","gpu":1,"engine":"sdma0.0 q1","limit":2})");
  ASSERT_EQ(log["accesses"].size(), 2u);
  EXPECT_EQ(log["accesses"][1]["outcome"], "refused");
  EXPECT_EQ(log["accesses"][0]["address"], 0x1234);
  EXPECT_TRUE(run(R"({"command":"log"})")["accesses"].empty());
  const auto totals = run(R"({"command":"totals"})")["totals"];
  ASSERT_EQ(totals.size(), 1u);
  EXPECT_EQ(totals[0]["accesses"], 4);
  EXPECT_EQ(totals[0]["bytes"], 300);
  EXPECT_EQ(totals[0]["failed"], 1);
  EXPECT_EQ(totals[0]["kind"], "remote");
  const std::string path = directory + "/log";
  EXPECT_TRUE(run(R"({"command":"write_log","path":")" + path + "\"}")["ok"].get<bool>());
  std::ifstream written(path);
  std::string line;
  std::getline(written, line);
  EXPECT_EQ(line, "5 gpu1 sdma0.0 q1 remote read 0x1234 100 ok");
}

TEST(AccessLogTest, TotalsOutliveTheRing) {
  AccessLog log(4);
  Access access;
  access.engine = "lsdma";
  access.bytes = 8;
  for (int i = 0; i < 10; ++i) {
    access.address = static_cast<std::uint64_t>(i);
    log.add(access);
  }
  EXPECT_EQ(log.recent().size(), 4u);
  EXPECT_EQ(log.recent().front().address, 6u);
  EXPECT_EQ(log.dropped(), 6u);
  EXPECT_EQ(log.totals().begin()->second.bytes, 80u);
}

TEST_F(Controlled, ScenarioFileRunsItsLines) {
  unsigned runs = 0;
  pod->hooks().add(ScenarioHooks::kPod, "test.count", "",
                   [&](const ScenarioValues&) -> base::Result<ScenarioValues> {
                     ++runs;
                     return ScenarioValues{};
                   });
  EXPECT_TRUE(control.run_file(
      file("# two of them\n\n{\"command\":\"test.count\"}\n  {\"command\":\"test.count\"}\r\n")));
  EXPECT_EQ(runs, 2u);
  const auto bad =
      control.run_file(file("\n{\"command\":\"no.such\"}\n{\"command\":\"test.count\"}\n"));
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message().find("scenario:2"), std::string::npos);
  EXPECT_EQ(runs, 2u);
  EXPECT_EQ(control.run_file(directory + "/none").error().code, base::Errc::kNotFound);
}

TEST_F(Controlled, CountersOfTheModelJoinThoseOfTheServer) {
  pod->hooks().add(1, "device.counters", "",
                   [](const ScenarioValues&) -> base::Result<ScenarioValues> {
                     ScenarioValues values;
                     values.set("doorbells.dropped", std::uint64_t{4});
                     return values;
                   });
  const auto gpus = run(R"({"command":"counters"})")["gpus"];
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[1]["model"]["doorbells.dropped"], 4);
  EXPECT_EQ(gpus[0]["connected"], false);
}

}  // namespace
}  // namespace gpusim::testing
