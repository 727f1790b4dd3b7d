// What needs no daemon: wrong usage, and a daemon that is not there.
#include "tests/gpuctl/run.h"
#include "tools/gpuctl/exit_code.h"

namespace {

using gpuctl_test::gpuctl;
using gpuctl_test::TempDir;

TEST(GpuctlArguments, WrongUsageIsNamedInOneLine) {
  const struct {
    std::vector<std::string> arguments;
    std::string named;
  } kCases[] = {
      {{}, "required"},
      {{"lost"}, "lost"},
      {{"list", "--colour"}, "--colour"},
      {{"list", "--timeout", "0"}, "--timeout"},
      {{"list", "--timeout", "-1"}, "--timeout"},
      {{"list", "--timeout", "soon"}, "soon"},
      {{"list", "--timeout", "nan"}, "nan"},
      {{"list", "--timeout"}, "--timeout"},
      {{"list", "status", "more"}, "more"},
      {{"demo", "--mib", "0"}, "--mib"},
      {{"demo", "--mib", "999999"}, "--mib"},
      {{"list", "--mib", "1"}, "--mib"},
      {{"list", "--sysroot", "/"}, "--sysroot"},
      {{"bind"}, "devices"},
      {{"unbind", "--yes"}, "devices"},
      {{"bind", "gpu0"}, "gpu0"},
      {{"bind", "0000:03:00.9"}, "0000:03:00.9"},
      {{"unbind", "0000:03:00.0", "--any"}, "--any"},
      {{"devices", "--device", "x"}, "x"},
      {{"doctor", "--yes"}, "--yes"},
  };
  for (const auto& [arguments, named] : kCases) {
    const auto ran = gpuctl(arguments);
    EXPECT_EQ(ran.code, gpuctl::kUsage) << named << ": " << ran.error;
    EXPECT_TRUE(ran.one_line()) << named << ": " << ran.out << ran.error;
    EXPECT_NE(ran.error.find(named), std::string::npos) << ran.error;
  }
}

TEST(GpuctlArguments, HelpIsNoError) {
  const auto ran = gpuctl({"--help"});
  EXPECT_EQ(ran.code, gpuctl::kOk);
  for (const auto* verb : {"list", "status", "clients", "exports", "imports", "peers", "faults",
                           "demo", "devices", "bind", "unbind", "doctor"})
    EXPECT_NE(ran.out.find(verb), std::string::npos) << verb;
}

TEST(GpuctlArguments, NobodyThereIsNoDaemonForEveryVerb) {
  const TempDir empty;
  for (const auto* verb :
       {"list", "status", "clients", "exports", "imports", "peers", "faults", "demo"}) {
    const auto ran = gpuctl({verb, "--runtime-dir", empty.path(), "--timeout", "5", "--json"});
    EXPECT_EQ(ran.code, gpuctl::kNoDaemon) << verb << ": " << ran.error;
    EXPECT_TRUE(ran.one_line()) << ran.out << ran.error;
    EXPECT_NE(ran.error.find(empty.path()), std::string::npos) << ran.error;
  }
}

TEST(GpuctlArguments, PathTooLongForASocketIsNamed) {
  const auto ran = gpuctl({"list", "--runtime-dir", "/tmp/" + std::string(200, 'x')});
  EXPECT_EQ(ran.code, gpuctl::kFailed);
  EXPECT_TRUE(ran.one_line()) << ran.error;
}

}  // namespace
