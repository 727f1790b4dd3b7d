#include "tools/gpuctl/table.h"

#include <gtest/gtest.h>

#include "tools/gpuctl/render.h"

namespace {

using namespace gpuctl;

TEST(GpuctlTable, ColumnsAreAsWideAsTheirWidestCell) {
  Table table({">N", "NAME", "LAST"});
  table.add({"7", "a", "x"});
  table.add({"1234", "longer", ""});
  EXPECT_EQ(table.text(),
            "   N  NAME    LAST\n"
            "   7  a       x\n"
            "1234  longer\n");
}

TEST(GpuctlTable, Units) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(std::uint64_t{1} << 30), "1 GiB");
  EXPECT_EQ(bytes_text(3 << 19), "1.5 MiB");
  EXPECT_EQ(duration_text(950), "950 ns");
  EXPECT_EQ(duration_text(12'340), "12.3 us");
  EXPECT_EQ(duration_text(100'000'000), "100 ms");
  EXPECT_EQ(rate_text(2'000'000'000, 0.5), "4 GB/s");
  EXPECT_EQ(rate_text(1, 0), "-");
}

// A newer gpuctl beside an older daemon, or the reverse.
TEST(GpuctlTable, MissingMembersAreShownAsSuch) {
  const auto text = render(nlohmann::json::parse(
      R"({"verb": "peers", "devices": [{"index": 0, "device": "x", "simulated": true,
          "peers": [{"accelerator_id": 5}]}, {"index": 1, "device": "y", "simulated": false}]})"));
  EXPECT_NE(text.find("gpu 0  SIM  x\n"), std::string::npos) << text;
  EXPECT_NE(text.find("gpu 1  PCI  y\n  none\n"), std::string::npos) << text;
  EXPECT_NE(text.find("    5  -"), std::string::npos) << text;
}

}  // namespace
