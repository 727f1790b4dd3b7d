// Thousands of seeded histories of a small pod. A failure names its seed: run it alone with
// --gtest_filter and SIM_FIRST=<seed> SIM_SEEDS=1.
#include <gtest/gtest.h>

#include <cstdlib>

#include "sim_network.h"

namespace {

using fabric_test::SimNetwork;
using fabric_test::SimOptions;

std::uint64_t number(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

void play(const SimOptions& options, int steps, std::uint64_t seeds) {
  std::uint64_t granted = 0;
  std::uint64_t revoked = 0;
  std::uint64_t accesses = 0;
  const std::uint64_t first = number("SIM_FIRST", 1);
  seeds = number("SIM_SEEDS", seeds);
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    SimNetwork network(seed, options);
    network.play(steps);
    granted += network.imports_granted;
    revoked += network.revokes_done;
    accesses += network.accesses;
    for (const auto& violation : network.violations())
      ADD_FAILURE() << "seed " << seed << ": " << violation;
    if (::testing::Test::HasFailure()) return;
  }
  // A simulation in which nothing happens proves nothing.
  EXPECT_GT(granted, seeds);
  EXPECT_GT(revoked, seeds);
  EXPECT_GT(accesses, seeds);
}

TEST(Sim, A1_A7_QuietNetwork) { play({.nodes = 2}, 60, 300); }

TEST(Sim, LossyNetwork) {
  play({.nodes = 2, .lose_permille = 30, .duplicate_permille = 50, .refuse_permille = 15}, 60, 400);
}

// So few NPA pages that every range is wanted again at once: only the quarantine stands between an
// importer that has not let go and the next export.
TEST(Sim, U18_FewNpaPages) {
  play({.nodes = 3,
        .lose_permille = 60,
        .duplicate_permille = 20,
        .refuse_permille = 20,
        .stall_permille = 10,
        .npa_pages = 14,
        .link_flaps = true},
       120, 3000);
}

TEST(Sim, ThreeNodesWithRestarts) {
  play({.nodes = 3, .lose_permille = 10, .duplicate_permille = 20, .restarts = true}, 60, 300);
}

TEST(Sim, StallsAndLinkFlaps) {
  play({.nodes = 3, .refuse_permille = 5, .stall_permille = 10, .link_flaps = true}, 60, 300);
}

TEST(Sim, Everything) {
  play({.nodes = 3,
        .lose_permille = 15,
        .duplicate_permille = 30,
        .refuse_permille = 10,
        .stall_permille = 10,
        .restarts = true,
        .link_flaps = true},
       60, 300);
}

// One node as a peer without the extension, its firmware without opcode 1.
TEST(Sim, U48_LegacyPeer) {
  play({.nodes = 2, .legacy_last = true, .shootdown_last = false, .lose_permille = 10}, 60, 200);
  play({.nodes = 3,
        .legacy_last = true,
        .lose_permille = 10,
        .refuse_permille = 5,
        .restarts = true,
        .link_flaps = true},
       60, 200);
}

}  // namespace
