// That the fixture finds a driver's mistakes: provoked here, once each.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "tests/whole/client.h"

namespace whole {
namespace {

using namespace gpuumd;

constexpr std::uint64_t kSize = 64 << 10;

class Mistakes : public System {};

// The engine reads the staging memory at an address where nothing is mapped.
TEST_F(Mistakes, DMA_5_AnAccessToHostMemoryThatIsNotMappedFailsATest) {
  start();
  auto client = connect();
  auto device = open(client);
  auto space = Space::make(device);
  auto buffer = vram(device, kSize);
  must(space.vm.map(kVa, buffer, 0, kSize, kReadWrite));
  must(space.staging.upload(kVa, random_bytes(kSize, 1), Wait(30s)));
  check_mistakes();
  for (const char* hub : {"gfxhub0", "gfxhub1"})
    (void)control(std::string(R"({"command": ")") + hub +
                  R"(.wrong_iova", "add": "0x400000000000", "count": 1})");
  EXPECT_FALSE(space.staging.upload(kVa, random_bytes(kSize, 2), Wait(30s)));
  EXPECT_NONFATAL_FAILURE(check_mistakes(), "hubs.bus_errors of GPU 0");
  expect(Mistake::kBusError);
  const auto refused = [this](const char* field) {
    return number(0, GPUUMD_QUERY_STATUS, {"bus_errors", field});
  };
  EXPECT_EQ(refused("count"), 1u);
  EXPECT_GE(refused("last_iova"), 0x400000000000u);
}

// Two address spaces of one client share memory one after the other, and nobody writes in between:
// to the model the second reads what the first left.
TEST_F(Mistakes, MemoryOfAnotherThatWasNotClearedFailsATest) {
  start();
  auto client = connect();
  auto device = open(client);
  auto first = Space::make(device), second = Space::make(device);
  auto buffer = vram(device, kSize);
  must(first.vm.map(kVa, buffer, 0, kSize, kReadWrite));
  must(first.staging.upload(kVa, random_bytes(kSize, 1), Wait(30s)));
  must(first.vm.unmap(kVa, kSize, Wait(30s)));
  check_mistakes();
  must(second.vm.map(kVa, buffer, 0, kSize, kReadWrite));
  (void)second.read(kVa, kSize);
  EXPECT_NONFATAL_FAILURE(check_mistakes(), "vram.poison_reads of GPU 0");
  expect(Mistake::kPoisonRead);
}

}  // namespace
}  // namespace whole
