// Buffers on a device that works, and on one that does not.
#include "daemon/session/buffer_store.h"

#include "daemon/session/join.h"
#include "tests/session/device_rig.h"

namespace gpuumd {
namespace {

using base::Errc;
using request::Memory;

class Buffers : public test::DeviceRig {
 protected:
  base::Result<BufferRef> create(std::uint64_t bytes, std::uint64_t alignment = 0,
                                 Memory kind = Memory::kVram) {
    return wait<BufferRef>([=](Device& device, auto done) {
      device.buffers().create(device.next_object_id(), {kind, bytes, alignment}, 0,
                              std::move(done));
    });
  }
  static std::uint64_t used_vram(Device& device) {
    const auto& vram = device.gpu().vram();
    return vram.visible_usage().used + vram.invisible_usage().used -
           device.gpu().table_pages().vram_pages() * base::kPageSize;
  }
};

TEST_F(Buffers, FH_6_MemoryReadsAsZeroWhateverWasThere) {
  constexpr std::uint64_t kBytes = 2 * base::kMiB;
  auto all = std::make_shared<std::vector<VramBlock>>();
  ASSERT_TRUE(wait<void>([&](Device& device, auto done) {
    auto& gpu = device.gpu();
    Join filled(std::move(done));
    while (auto block = gpu.vram().allocate(kBytes, VramZone::kInvisibleFirst)) {
      gpu.copy_engine().fill(gpu.vram_map().mc(block->offset()), 0xA5A5'A5A5, kBytes,
                             filled.part());
      all->push_back(std::move(*block));
    }
    filled.end();
  }));
  on([&](Device&) { all->clear(); });
  auto buffer = create(kBytes);
  ASSERT_TRUE(buffer);
  ASSERT_TRUE(wait<void>([&](Device& device, auto done) {
    device.buffers().make_present(*buffer, 0, kBytes, std::move(done));
  }));
  // To where the CPU can read it.
  VramBlock window;
  ASSERT_TRUE(wait<void>([&](Device& device, auto done) {
    auto& gpu = device.gpu();
    window = std::move(*gpu.vram().allocate(kBytes, VramZone::kVisible));
    const auto runs = (*buffer)->runs(0, kBytes);
    EXPECT_EQ(runs.size(), 1u);
    gpu.copy_engine().copy(gpu.vram_map().mc(runs[0].vram_offset()),
                           gpu.vram_map().mc(window.offset()), kBytes, std::move(done));
  }));
  on([&](Device& device) {
    auto& bar = *device.gpu().boot().bars.vram;
    std::uint64_t wrong = 0;
    for (std::uint64_t at = 0; at < kBytes; at += 8)
      wrong += bar.read64(window.offset().value() + at) != 0 ? 1 : 0;
    EXPECT_EQ(wrong, 0u);
    window.reset();
    buffer->reset();
  });
}

TEST_F(Buffers, AnAlignedBufferIsMadeOfAlignedPieces) {
  for (const auto kind : {Memory::kVram, Memory::kHost}) {
    auto buffer = create(2 * base::kMiB + 768 * base::kKiB, 256 * base::kKiB, kind);
    ASSERT_TRUE(buffer) << buffer.error().message();
    const auto made = wait<void>([&](Device& device, auto done) {
      device.buffers().make_present(*buffer, 0, (*buffer)->bytes(), std::move(done));
    });
    ASSERT_TRUE(made) << made.error().message();
    on([&](Device&) {
      for (std::uint64_t at = 0; at < (*buffer)->bytes(); at += 256 * base::kKiB) {
        const auto runs = (*buffer)->runs(at, 256 * base::kKiB);
        EXPECT_EQ(runs.size(), 1u) << at;
        const auto address =
            kind == Memory::kVram ? runs[0].vram_offset().value() : runs[0].iova().value();
        EXPECT_EQ(address % (256 * base::kKiB), 0u) << at;
      }
      buffer->reset();
    });
  }
}

TEST_F(Buffers, AnAlignmentThatVramInPiecesCannotGiveIsNoSpaceAtOnce) {
  // All of VRAM in pages, of which every second one is free again.
  auto pages = std::make_shared<std::vector<VramBlock>>();
  on([&](Device& device) {
    while (auto page = device.gpu().vram().allocate(base::kPageSize, VramZone::kInvisibleFirst))
      pages->push_back(std::move(*page));
    for (std::size_t i = 0; i < pages->size(); i += 2) (*pages)[i].reset();
  });
  const auto coarse = create(base::kMiB, 64 * base::kKiB);
  ASSERT_FALSE(coarse);
  EXPECT_EQ(coarse.error().code, Errc::kNoSpace);
  auto fine = create(base::kMiB);
  EXPECT_TRUE(fine);
  on([&](Device&) {
    fine->reset();
    pages->clear();
  });
}

// Until then the engine may be at the other blocks, and what they end with is not the next try's.
TEST_F(Buffers, AFailedFillIsToldWhenAllFillsOfTheChunkHaveEnded) {
  auto buffer = create(12 * base::kKiB);  // two blocks
  ASSERT_TRUE(buffer);
  std::vector<std::string> told;
  on([&](Device& device) {
    auto& engine = device.gpu().copy_engine();
    const auto make = [&](Done done) {
      device.buffers().make_present(*buffer, 0, 4096, std::move(done));
    };
    make([&, make](base::Result<void> result) {
      told.push_back(result ? "good" : result.error().step);
      engine.fail({Errc::kDeviceError, 0, "second"});
      make([&](base::Result<void> again) { told.push_back(again ? "good" : again.error().step); });
    });
    ASSERT_EQ(engine.outstanding(), 2u);
    engine.fail({Errc::kDeviceError, 0, "first"});
  });
  ASSERT_TRUE(eventually([&](Device&) { return told.size() == 2; }));
  EXPECT_EQ(told, (std::vector<std::string>{"first", "second"}));
  on([&](Device&) {
    EXPECT_FALSE((*buffer)->present(0, 4096));
    buffer->reset();
  });
}

// A revoke that failed: `free` is called with the memory still in the reach of peers.
TEST_F(Buffers, A27_MemoryThatAPeerMayStillReachIsInQuarantineUntilItIsUnpinned) {
  const auto before = on(used_vram);
  auto buffer = create(2 * base::kMiB);
  ASSERT_TRUE(buffer);
  ASSERT_TRUE(wait<void>([&](Device& device, auto done) {
    device.buffers().make_present(*buffer, 0, 2 * base::kMiB, std::move(done));
  }));
  const auto id = (*buffer)->id();
  on([&](Device& device) {
    auto& store = device.buffers();
    store.pin(**buffer);
    buffer->reset();
    ASSERT_NE(store.find(id), nullptr);
    EXPECT_FALSE(store.find(id)->referenced());
    EXPECT_EQ(store.counters().quarantined, 1u);
    EXPECT_EQ(store.counters().vram_reserved, 2 * base::kMiB);
    EXPECT_EQ(used_vram(device), before + 2 * base::kMiB);
    store.unpin(*store.find(id));
    EXPECT_EQ(store.find(id), nullptr);
    EXPECT_EQ(store.counters().quarantined, 0u);
    EXPECT_EQ(store.counters().vram_reserved, 0u);
    EXPECT_EQ(used_vram(device), before);
  });
}

// The fills hold the buffer, and the engine would hold the fills beyond the end of both.
TEST_F(Buffers, WhatWaitsForTheEngineIsAnsweredBeforeTheDeviceIsDown) {
  constexpr std::uint64_t kBytes = 32 * base::kMiB;
  auto buffer = create(kBytes);
  ASSERT_TRUE(buffer);
  bool answered = false;
  on([&](Device& device) {
    device.buffers().make_present(*buffer, 0, kBytes, [&](base::Result<void>) { answered = true; });
    EXPECT_FALSE(answered);
  });
  EXPECT_TRUE(thread_->stop());
  on([&](Device& device) {
    EXPECT_TRUE(answered);
    EXPECT_EQ(device.gpu().copy_engine().outstanding(), 0u);
    buffer->reset();
  });
  thread_.reset();
}

TEST_F(Buffers, MemoryGoesBackWithTheLastReference) {
  const auto before = on(used_vram);
  auto buffer = create(3 * base::kMiB);
  ASSERT_TRUE(buffer);
  ASSERT_TRUE(wait<void>([&](Device& device, auto done) {
    device.buffers().make_present(*buffer, 0, 3 * base::kMiB, std::move(done));
  }));
  EXPECT_EQ(on(used_vram), before + 3 * base::kMiB);
  on([&](Device&) { buffer->reset(); });
  EXPECT_EQ(on(used_vram), before);
}

}  // namespace
}  // namespace gpuumd
