// The device's two threads at once: the reactor's accesses and the memory worker's mappings.
#include <unistd.h>

#include <atomic>
#include <thread>

#include "rig.h"

namespace vfio_test {
namespace {

namespace wire = vfio::wire;

using Threads = Rig;

TEST_F(Threads, ReactorAndWorkerShareTheSocket) {
  connect();
  open_bar(BarIndex::k5);
  const auto memory = base::make_memfd("memory", 4096).value();
  const int fd = memory.get();
  std::thread worker([&] {
    for (std::uint64_t i = 0; i < 500; ++i) {
      const Iova at(0x10000 + i % 7 * 4096);
      EXPECT_TRUE(device_->map_dma(fd, 0, 4096, at, Rights::kReadWrite));
      EXPECT_TRUE(device_->unmap_dma(at, 4096));
    }
  });
  for (std::uint32_t i = 0; i < 1000; ++i) {
    bar_->write32(i % 512 * 4, i);
    EXPECT_EQ(bar_->read32(i % 512 * 4), i);
  }
  worker.join();
  EXPECT_FALSE(device_->lost());
}

// Each read of a register makes the server read memory first, while the worker maps and the
// reactor polls.
TEST_F(Threads, ServerAsksWhileBothWait) {
  connect();
  open_bar(BarIndex::k5);
  const auto memory = base::make_memfd("memory", 4096).value();
  const int fd = memory.get();
  const std::uint32_t value = 0xfeedc0de;
  ASSERT_EQ(::pwrite(fd, &value, 4, 0), 4);
  ASSERT_TRUE(device_->map_dma(fd, 0, 4096, Iova(0x5000), Rights::kReadWrite));
  std::atomic<unsigned> wrong = 0;
  server().script(Command::kRegionRead, [&](ScriptedServer& s, const Packet&, Packet& reply) {
    const Packet answer = s.ask(Command::kDmaRead, bytes_of(wire::DmaAccess{0x5000, 4}));
    if (answer.as<std::uint32_t>(16) != value) ++wrong;
    s.send(reply);
  });
  std::thread worker([&] {
    for (std::uint64_t i = 0; i < 200; ++i) {
      EXPECT_TRUE(device_->map_dma(fd, 0, 4096, Iova(0x10000), Rights::kRead));
      EXPECT_TRUE(device_->unmap_dma(Iova(0x10000), 4096));
    }
  });
  for (std::uint32_t i = 0; i < 200; ++i) {
    (void)bar_->read32(0);
    device_->handle_events();
  }
  worker.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(device_->counters().dma_reads, 200u);
}

// The reactor serves the socket although the worker waits on it.
TEST_F(Threads, EventsAreHandledWhileTheWorkerWaits) {
  connect();
  std::atomic<bool> release = false;
  server().script(Command::kDmaMap, [&](ScriptedServer& s, const Packet&, Packet& reply) {
    while (!release) std::this_thread::sleep_for(1ms);
    s.send(reply);
  });
  const auto memory = base::make_memfd("memory", 4096).value();
  std::thread worker(
      [&] { EXPECT_TRUE(device_->map_dma(memory.get(), 0, 4096, Iova(0), Rights::kRead)); });
  for (int i = 0; i < 100; ++i) device_->handle_events();
  server().send_command(Command::kDmaRead, bytes_of(wire::DmaAccess{0x900000, 4}));
  while (device_->counters().dma_refused == 0) device_->handle_events();
  release = true;
  worker.join();
}

TEST_F(Threads, HangUpEndsBothWaits) {
  connect();
  open_bar(BarIndex::k5);
  std::atomic<unsigned> waiting = 0;
  const auto swallow = [&](ScriptedServer& s, const Packet&, Packet&) {
    if (++waiting == 2) s.hang_up();
  };
  server().script(Command::kDmaMap, swallow);
  server().script(Command::kRegionRead, swallow);
  const auto memory = base::make_memfd("memory", 4096).value();
  std::thread worker([&] {
    EXPECT_EQ(device_->map_dma(memory.get(), 0, 4096, Iova(0), Rights::kRead).error().code,
              Errc::kDisconnected);
  });
  EXPECT_EQ(bar_->read32(0), 0xffffffffu);
  worker.join();
  expect_lost();
}

// The follower's deadline ends its wait although the leader has a longer one.
TEST_F(Threads, DeadlineOfTheOneWhoDoesNotRead) {
  auto options = patient();
  options.trap = 200ms;
  connect(options);
  open_bar(BarIndex::k5);
  const auto swallow = [](ScriptedServer&, const Packet&, Packet&) {};
  server().script(Command::kDmaMap, swallow);
  server().script(Command::kRegionRead, swallow);
  const auto memory = base::make_memfd("memory", 4096).value();
  std::thread worker([&] {
    EXPECT_EQ(device_->map_dma(memory.get(), 0, 4096, Iova(0), Rights::kRead).error().code,
              Errc::kTimeout);
  });
  EXPECT_TRUE(server().wait_until([&] { return server().dma_maps.contains(0); }));
  EXPECT_EQ(bar_->read32(0), 0xffffffffu);
  worker.join();
  expect_lost();
}

// In line, the owner pumps the model and the worker only waits.
TEST(InlineThreads, WorkerWaitsForTheOwnersPump) {
  ScriptedServer server(ScriptedServer::Host::kInline);
  auto options = patient();
  const auto owner = std::this_thread::get_id();
  options.pump = [&] {
    EXPECT_EQ(std::this_thread::get_id(), owner);
    server.step();
  };
  auto device = vfio::connect_vfio_user(server.take_client_end(), "sim:inline", options);
  ASSERT_TRUE(device);
  auto bar = (*device)->open_bar(BarIndex::k5);
  ASSERT_TRUE(bar);
  const auto memory = base::make_memfd("memory", 4096).value();
  std::atomic<bool> done = false;
  std::thread worker([&] {
    for (int i = 0; i < 100; ++i) {
      EXPECT_TRUE((*device)->map_dma(memory.get(), 0, 4096, Iova(0), Rights::kRead));
      EXPECT_TRUE((*device)->unmap_dma(Iova(0), 4096));
    }
    done = true;
  });
  while (!done) {
    server.step();  // as one of the reactor's pollers
    (void)(*bar)->read32(0);
    (*device)->handle_events();
  }
  worker.join();
  bar->reset();
  device->reset();
}

// The worker sleeps in poll() when the owner reads the reply meant for it: it must be told, or it
// sleeps until its deadline.
TEST(InlineThreads, WorkerIsWokenByWhoeverReadForIt) {
  ScriptedServer server(ScriptedServer::Host::kInline);
  auto options = patient();
  options.pump = [&] { server.step(); };
  auto device = vfio::connect_vfio_user(server.take_client_end(), "sim:inline", options);
  ASSERT_TRUE(device);
  const auto memory = base::make_memfd("memory", 4096).value();
  std::atomic<bool> done = false;
  const auto start = std::chrono::steady_clock::now();
  std::thread worker([&] {
    for (int i = 0; i < 50; ++i) {
      EXPECT_TRUE((*device)->map_dma(memory.get(), 0, 4096, Iova(0), Rights::kRead));
      EXPECT_TRUE((*device)->unmap_dma(Iova(0), 4096));
    }
    done = true;
  });
  while (!done) {
    server.step();
    (*device)->handle_events();
  }
  worker.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, patient().call);
  device->reset();
}

// The reactor lets go while the worker is in a call: neither hangs, and the worker is told.
TEST_F(Threads, ReleaseWhileTheWorkerMaps) {
  connect();
  open_bar(BarIndex::k5);
  const auto memory = base::make_memfd("memory", 4096).value();
  std::atomic<unsigned> done = 0;
  std::thread worker([&] {
    for (;;) {
      if (!device_->map_dma(memory.get(), 0, 4096, Iova(0x10000), Rights::kRead)) break;
      if (!device_->unmap_dma(Iova(0x10000), 4096)) break;
      ++done;
    }
  });
  while (done < 20) std::this_thread::yield();
  device_->release();
  worker.join();
  EXPECT_EQ(device_->map_dma(memory.get(), 0, 4096, Iova(0), Rights::kRead).error().code,
            Errc::kDeviceLost);
}

}  // namespace
}  // namespace vfio_test
