// Two nodes of a pod: export, import, remote copies, revoke.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/whole/child.h"
#include "tests/whole/client.h"

namespace whole {
namespace {

using namespace gpuumd;

constexpr std::uint64_t kSize = 8 << 20;

class Pod : public System {
 protected:
  void start_pod() { start({.gpus = 2, .model = {}, .daemon = {"--no-same-host"}}); }

  // A buffer of node 0 that holds `data`, exported.
  struct Exported {
    Buffer buffer;
    Handle handle;
  };
  Exported export_data(Device& device, Space& space, const std::vector<std::byte>& data) {
    auto buffer = vram(device, data.size());
    must(space.vm.map(kVa, buffer, 0, data.size(), kReadWrite));
    must(space.staging.upload(kVa, data, Wait(30s)));
    auto handle = must(buffer.export_handle());
    return {std::move(buffer), handle};
  }
};

class GuestFabric : public Pod {};
class Fabric : public Pod {};

TEST_F(GuestFabric, AnImportIsCopiedOverTheFabricIdentical) {
  start_pod();
  auto client_a = connect(0), client_b = connect(1);
  auto a = open(client_a), b = open(client_b);
  auto space_a = Space::make(a), space_b = Space::make(b);
  const auto data = random_bytes(kSize, 3);
  auto exported = export_data(a, space_a, data);

  auto import = must(b.import_handle(exported.handle, Wait(20s)));
  EXPECT_EQ(import.bytes(), kSize);
  auto local = vram(b, kSize);
  must(space_b.vm.map(kVa, import, 0, kSize, GPUUMD_BIND_READ));
  must(space_b.vm.map(2 * kVa, local, 0, kSize, kReadWrite));
  must(space_b.copy(2 * kVa, kVa, kSize));
  EXPECT_TRUE(space_b.read(2 * kVa, kSize) == data);
}

TEST_F(GuestFabric, UAL_4_TheSameHandleIsTheSameObjectAndExportGivesItAgain) {
  start_pod();
  auto client_a = connect(0), client_b = connect(1);
  auto a = open(client_a), b = open(client_b);
  auto space_a = Space::make(a);
  auto exported = export_data(a, space_a, random_bytes(1 << 20, 4));
  const auto again = must(exported.buffer.export_handle());
  EXPECT_EQ(again.text(), exported.handle.text());
  auto first = must(b.import_handle(exported.handle, Wait(20s)));
  auto second = must(b.import_handle(exported.handle, Wait(20s)));
  EXPECT_EQ(first.id(), second.id());
}

TEST_F(GuestFabric, UAL_4_EachImportOfAHandleIsDestroyedByItself) {
  start_pod();
  auto client_a = connect(0), client_b = connect(1);
  auto a = open(client_a), b = open(client_b);
  auto space_a = Space::make(a), space_b = Space::make(b);
  const auto data = random_bytes(1 << 20, 12);
  auto exported = export_data(a, space_a, data);
  auto first = std::make_optional(must(b.import_handle(exported.handle, Wait(20s))));
  auto second = std::make_optional(must(b.import_handle(exported.handle, Wait(20s))));
  first.reset();
  must(space_b.vm.map(kVa, *second, 0, 1 << 20, GPUUMD_BIND_READ));
  EXPECT_TRUE(space_b.read(kVa, 1 << 20) == data);
  must(space_b.vm.unmap(kVa, 1 << 20));
  const auto imports = [&] { return must(client_b.query(GPUUMD_QUERY_IMPORTS, 0)); };
  EXPECT_NE(imports().find(exported.handle.text()), std::string::npos);
  second.reset();
  EXPECT_TRUE(
      eventually([&] { return imports().find(exported.handle.text()) == std::string::npos; }));
}

TEST_F(GuestFabric, ABufferThatIsOpenedTwiceIsDestroyedTwice) {
  start();
  auto client = connect(), other_client = connect();
  auto device = open(client), other = open(other_client);
  auto space = Space::make(other);
  auto buffer = vram(device, 1 << 20);
  base::UniqueFd descriptor(must(buffer.share()));
  auto first = std::make_optional(must(other.open_shared(descriptor.get())));
  auto second = must(other.open_shared(descriptor.get()));
  EXPECT_EQ(first->id(), second.id());
  first.reset();
  must(space.vm.map(kVa, second, 0, 1 << 20, kReadWrite));
  EXPECT_TRUE(space.read(kVa, 1 << 20) == std::vector<std::byte>(1 << 20));
}

TEST_F(GuestFabric, HandlesOfNobodyAndOfFreedBuffersAreNotFound) {
  start_pod();
  auto client_a = connect(0), client_b = connect(1);
  auto a = open(client_a), b = open(client_b);
  auto space_a = Space::make(a);
  Handle handle;
  {
    auto exported = export_data(a, space_a, random_bytes(1 << 20, 5));
    handle = exported.handle;
    must(space_a.vm.unmap(kVa, 1 << 20));
  }
  auto freed = b.import_handle(handle, Wait(20s));
  ASSERT_FALSE(freed);
  EXPECT_EQ(freed.error().status, GPUUMD_NOT_FOUND);
  handle.raw.hi ^= 1;
  auto nobody = b.import_handle(handle, Wait(20s));
  ASSERT_FALSE(nobody);
  EXPECT_EQ(nobody.error().status, GPUUMD_NOT_FOUND);
}

TEST_F(GuestFabric, A2_HalfAHandleOpensNothing) {
  start_pod();
  auto client_a = connect(0), client_b = connect(1);
  auto a = open(client_a), b = open(client_b);
  auto space_a = Space::make(a);
  auto exported = export_data(a, space_a, random_bytes(1 << 20, 6));
  auto good = must(b.import_handle(exported.handle, Wait(20s)));
  auto half = exported.handle;
  half.raw.hi ^= 0x8000;
  auto refused = b.import_handle(half, Wait(20s));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, GPUUMD_NOT_FOUND);
}

TEST_F(GuestFabric, UAL_2_FreedWhileBeingCopiedItIsRevokedAndNothingElseSuffers) {
  start_pod();
  auto client_a = connect(0), client_b = connect(1);
  auto a = open(client_a), b = open(client_b);
  auto space_a = Space::make(a);
  auto loop = Space::make(b), other = Space::make(b);
  const auto data = random_bytes(kSize, 7);
  auto exported = std::make_optional(export_data(a, space_a, data));
  auto import = must(b.import_handle(exported->handle, Wait(20s)));
  auto target = vram(b, kSize);
  must(loop.vm.map(kVa, import, 0, kSize, GPUUMD_BIND_READ));
  must(loop.vm.map(2 * kVa, target, 0, kSize, kReadWrite));
  auto own = vram(b, kSize);
  must(other.vm.map(kVa, own, 0, kSize, kReadWrite));
  must(other.staging.upload(kVa, data, Wait(30s)));

  std::atomic<int> copies{0};
  gpuumd_status ended = GPUUMD_OK;
  std::thread copier([&] {
    for (int n = 0; n < 100000; ++n) {
      const auto done = loop.copy(2 * kVa, kVa, kSize);
      if (!done) {
        ended = done.error().status;
        return;
      }
      copies.fetch_add(1);
    }
  });
  ASSERT_TRUE(eventually([&] { return copies.load() >= 3; }));
  must(space_a.vm.unmap(kVa, kSize));
  exported.reset();  // A frees it while B copies
  copier.join();
  EXPECT_EQ(ended, GPUUMD_REVOKED);
  EXPECT_TRUE(wait_event(client_b, GPUUMD_EVENT_REVOKED));
  // B's other work goes on, and so does A with the memory that came back.
  EXPECT_TRUE(other.read(kVa, kSize) == data);
  auto reused = vram(a, kSize);
  must(space_a.vm.map(kVa, reused, 0, kSize, kReadWrite));
  EXPECT_TRUE(space_a.read(kVa, kSize) == std::vector<std::byte>(kSize));
  EXPECT_TRUE(
      eventually([&] { return number(0, GPUUMD_QUERY_STATUS, {"buffers", "freed"}) >= 1; }));
}

TEST_F(GuestFabric, UAL_1_AnExportersDeathRevokesItsImports) {
  start_pod();
  auto client_b = connect(1);
  auto b = open(client_b);
  auto space_b = Space::make(b);
  const auto dir = runtime_dir(0);
  Child exporter([&](const Child::Say& say) {
    auto client = must(Client::connect(dir, "exporter", 20s));
    auto device = must(client.open_device(0u));
    auto space = Space::make(device);
    auto buffer = vram(device, kSize);
    must(space.vm.map(kVa, buffer, 0, kSize, kReadWrite));
    must(space.staging.upload(kVa, random_bytes(kSize, 8), Wait(30s)));
    say(must(buffer.export_handle()).text());
    ::pause();
    return 0;
  });
  const auto text = exporter.line();
  ASSERT_TRUE(text);
  auto import = must(b.import_handle(must(Handle::parse(*text)), Wait(20s)));
  auto local = vram(b, kSize);
  must(space_b.vm.map(kVa, import, 0, kSize, GPUUMD_BIND_READ));
  must(space_b.vm.map(2 * kVa, local, 0, kSize, kReadWrite));
  must(space_b.copy(2 * kVa, kVa, kSize));
  EXPECT_TRUE(space_b.read(2 * kVa, kSize) == random_bytes(kSize, 8));

  exporter.kill();
  EXPECT_TRUE(wait_event(client_b, GPUUMD_EVENT_REVOKED));
  EXPECT_EQ(must(import.state()), GPUUMD_REVOKED);
  const auto late = space_b.copy(2 * kVa, kVa, kSize);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().status, GPUUMD_REVOKED);
}

TEST_F(Fabric, A27_WhatPeersMayReachOfALostDeviceIsFreedByNobody) {
  start_pod();
  auto client_b = connect(1);
  auto b = open(client_b);
  auto import = [&] {
    auto client_a = connect(0);
    auto a = open(client_a);
    auto space_a = Space::make(a);
    auto exported = export_data(a, space_a, random_bytes(1 << 20, 13));
    auto import = must(b.import_handle(exported.handle, Wait(20s)));
    control(R"({"command": "pci.disconnect", "gpu": 0})");
    EXPECT_TRUE(wait_event(client_a, GPUUMD_EVENT_DEVICE_LOST));
    return import;
  }();
  EXPECT_TRUE(
      eventually([&] { return number(0, GPUUMD_QUERY_STATUS, {"buffers", "quarantined"}) == 1; }));
  kill_daemon(0);  // by itself it would end with an error: its device is lost
}

TEST_F(Fabric, AnImportUnderWayEndsWithItsDevice) {
  start_pod();
  auto client_a = connect(0), client_b = connect(1), watcher = connect(1);
  auto a = open(client_a), b = open(client_b);
  auto space_a = Space::make(a);
  auto exported = export_data(a, space_a, random_bytes(1 << 20, 14));
  control(R"({"command": "nht.mute", "gpu": 0})");  // the exporter never answers
  gpuumd_status ended = GPUUMD_OK;
  std::thread importer([&] {
    const auto import = b.import_handle(exported.handle, Wait(40s));
    if (!import) ended = import.error().status;
  });
  EXPECT_TRUE(eventually([&] {
    return must(watcher.query(GPUUMD_QUERY_IMPORTS, 0)).find(exported.handle.text()) !=
           std::string::npos;
  }));
  control(R"({"command": "pci.disconnect", "gpu": 1})");
  importer.join();
  EXPECT_EQ(ended, GPUUMD_DEVICE_LOST);
  kill_daemon(1);
}

TEST_F(GuestFabric, ADescriptorElsewhereKeepsAnExportOfADeadClient) {
  start_pod();
  auto client_b = connect(1);
  auto b = open(client_b);
  auto space_b = Space::make(b);
  auto holder_client = connect(0, "holder");
  auto holder_device = open(holder_client);
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  base::UniqueFd ours(sockets[0]), theirs(sockets[1]);
  const auto dir = runtime_dir(0);
  Child exporter([&](const Child::Say& say) {
    auto client = must(Client::connect(dir, "exporter", 20s));
    auto device = must(client.open_device(0u));
    auto space = Space::make(device);
    auto buffer = vram(device, kSize);
    must(space.vm.map(kVa, buffer, 0, kSize, kReadWrite));
    must(space.staging.upload(kVa, random_bytes(kSize, 9), Wait(30s)));
    send_fd(theirs.get(), must(buffer.share()));
    say(must(buffer.export_handle()).text());
    ::pause();
    return 0;
  });
  const auto text = exporter.line();
  ASSERT_TRUE(text);
  base::UniqueFd descriptor(receive_fd(ours.get()));
  ASSERT_TRUE(descriptor);
  auto import = must(b.import_handle(must(Handle::parse(*text)), Wait(20s)));
  auto local = vram(b, kSize);
  must(space_b.vm.map(kVa, import, 0, kSize, GPUUMD_BIND_READ));
  must(space_b.vm.map(2 * kVa, local, 0, kSize, kReadWrite));
  exporter.kill();
  ASSERT_TRUE(eventually([&] { return number(0, GPUUMD_QUERY_STATUS, {"sessions"}) == 1; }));
  must(space_b.copy(2 * kVa, kVa, kSize));
  EXPECT_TRUE(space_b.read(2 * kVa, kSize) == random_bytes(kSize, 9));

  descriptor.reset();  // the last holder lets go
  EXPECT_TRUE(wait_event(client_b, GPUUMD_EVENT_REVOKED));
}

TEST_F(GuestFabric, A13_TheLastCloseGivesTheMemoryBackToTheExporter) {
  start_pod();
  auto client_a = connect(0), client_b = connect(1);
  auto a = open(client_a), b = open(client_b);
  auto space_a = Space::make(a);
  auto exported = export_data(a, space_a, random_bytes(1 << 20, 10));
  const auto importers = [&] {
    return must(client_a.query(GPUUMD_QUERY_EXPORTS, 0)).find("\"importers\":1") !=
           std::string::npos;
  };
  {
    auto import = must(b.import_handle(exported.handle, Wait(20s)));
    EXPECT_TRUE(eventually(importers));
  }
  EXPECT_TRUE(eventually([&] { return !importers(); }));
}

// Who knows a handle can import the memory. What the daemon tells goes by the uid of the socket.
TEST_F(GuestFabric, HandlesAreShownToTheirOwnerAndToRootAlone) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be two users";
  start_pod();
  std::filesystem::permissions(directory(), std::filesystem::perms(0755));
  auto client_a = connect(0), client_b = connect(1);
  auto a = open(client_a), b = open(client_b);
  auto space_a = Space::make(a);
  auto roots = export_data(a, space_a, random_bytes(1 << 20, 15));
  auto import = must(b.import_handle(roots.handle, Wait(20s)));

  Child other([&](const Child::Say& say) {
    constexpr uid_t kNobody = 65534;
    if (::setresgid(kNobody, kNobody, kNobody) != 0 || ::setresuid(kNobody, kNobody, kNobody) != 0)
      return 1;
    auto exporter = must(Client::connect(runtime_dir(0), "other", 20s));
    auto importer = must(Client::connect(runtime_dir(1), "other", 20s));
    auto device = must(exporter.open_device(0u));
    auto buffer = vram(device, 1 << 20);
    say(must(buffer.export_handle()).text());
    say(must(exporter.query(GPUUMD_QUERY_EXPORTS, 0)));
    say(must(importer.query(GPUUMD_QUERY_IMPORTS, 0)));
    ::pause();
    return 0;
  });
  const auto others = other.line(), exports = other.line(), imports = other.line();
  ASSERT_TRUE(others && exports && imports);
  EXPECT_NE(exports->find(*others), std::string::npos) << *exports;
  EXPECT_EQ(exports->find(roots.handle.text()), std::string::npos) << *exports;
  EXPECT_EQ(imports->find(roots.handle.text()), std::string::npos) << *imports;

  const auto all = must(client_a.query(GPUUMD_QUERY_EXPORTS, 0));
  EXPECT_NE(all.find(*others), std::string::npos) << all;
  EXPECT_NE(all.find(roots.handle.text()), std::string::npos) << all;
  EXPECT_NE(must(client_b.query(GPUUMD_QUERY_IMPORTS, 0)).find(roots.handle.text()),
            std::string::npos);
}

TEST_F(Fabric, ImportOfALocalHandleIsRefusedByNameWithoutTheShortCut) {
  start_pod();
  auto client = connect(0);
  auto device = open(client);
  auto space = Space::make(device);
  auto exported = export_data(device, space, random_bytes(1 << 20, 11));
  auto import = device.import_handle(exported.handle, Wait(20s));
  ASSERT_FALSE(import);
  EXPECT_EQ(import.error().status, GPUUMD_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace whole
