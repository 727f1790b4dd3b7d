// A vfio-user device from its handshake to its end; its BARs are in user_bar_test.cc.
#include "vfio/user/user_device.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>
#include <thread>

#include "rig.h"

namespace vfio_test {
namespace {

namespace wire = vfio::wire;

using Device = Rig;

TEST_F(Device, SaysWhatItIs) {
  connect();
  const auto& identity = device_->identity();
  EXPECT_EQ(identity.name, "sim");
  EXPECT_EQ(identity.vendor, 0x1002);
  EXPECT_EQ(identity.device, 0x74a1);
  EXPECT_EQ(identity.class_code, 0x120000u);
  EXPECT_EQ(identity.revision, 7);
  EXPECT_EQ(identity.backend, "vfio-user");
  EXPECT_EQ(identity.backend_remark, "");
  EXPECT_FALSE(device_->lost());
}

TEST_F(Device, ProposesVersionAndCapabilities) {
  connect();
  const Packet request = server().last(Command::kVersion);
  EXPECT_EQ(request.header.flags, 0u);
  EXPECT_EQ(request.header.size, 16 + request.body.size());
  EXPECT_EQ(request.as<std::uint16_t>(0), 0);
  EXPECT_EQ(request.as<std::uint16_t>(2), 1);
  EXPECT_EQ(request.body.back(), std::byte{0});
  const auto json = nlohmann::json::parse(server().client_json);
  const auto& capabilities = json.at("capabilities");
  EXPECT_EQ(capabilities.at("max_msg_fds"), 8);
  EXPECT_EQ(capabilities.at("max_data_xfer_size"), 1048576);
  EXPECT_EQ(capabilities.at("gpuumd.wake").at("version"), 1);
}

TEST_F(Device, TakesIovaLimitsFromTheServer) {
  server().capabilities = R"({"capabilities": {"pgsizes": 2101248, "max_dma_maps": 7}})";
  connect();
  EXPECT_EQ(device_->iova_limits().page_sizes, 2101248u);
  EXPECT_EQ(device_->iova_limits().max_mappings, 7u);
  ASSERT_EQ(device_->iova_limits().usable.size(), 1u);
}

TEST_F(Device, AssumesDefaultsWhenTheServerStatesNothing) {
  server().script(Command::kVersion, [](ScriptedServer& s, const Packet&, Packet& reply) {
    reply.body = bytes_of(wire::Version{0, 0});
    reply.header.size = 20;
    reply.send_fds.clear();
    s.send(reply);
  });
  connect();
  EXPECT_EQ(device_->iova_limits().page_sizes, 4096u);
  EXPECT_EQ(device_->iova_limits().max_mappings, 65535u);
}

TEST_F(Device, TakesAReplyInPieces) {
  server().script(Command::kVersion, [](ScriptedServer& s, const Packet&, Packet& reply) {
    Bytes all = bytes_of(reply.header);
    all.insert(all.end(), reply.body.begin(), reply.body.end());
    s.send_raw(std::span(all).first(1), reply.send_fds);
    for (std::size_t i = 1; i < all.size(); ++i) s.send_raw(std::span(all).subspan(i, 1));
  });
  connect();
  EXPECT_EQ(device_->identity().vendor, 0x1002);
}

TEST_F(Device, ConfigSpace) {
  connect();
  EXPECT_EQ(device_->read_config(2, 2).value(), 0x74a1u);
  EXPECT_EQ(device_->read_config(0xb, 1).value(), 0x12u);
  ASSERT_TRUE(device_->write_config(4, 2, 0x1234'0406));
  EXPECT_EQ(device_->read_config(4, 4).value(), 0x0406u);
  EXPECT_EQ(device_->read_config(1, 2).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(device_->read_config(0, 3).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(device_->read_config(4096, 4).error().code, Errc::kOutOfRange);
  EXPECT_EQ(device_->write_config(0xfffffffc, 4, 0).error().code, Errc::kOutOfRange);
  EXPECT_EQ(server().last(Command::kRegionWrite).header.flags, 0u) << "config writes are answered";
}

TEST_F(Device, MapPassesTheDescriptor) {
  connect();
  const auto memory = base::make_memfd("memory", 4 * 4096).value();
  ASSERT_TRUE(device_->map_dma(memory.get(), 4096, 2 * 4096, Iova(0x100000), Rights::kRead));
  ASSERT_TRUE(server().dma_maps.contains(0x100000));
  const auto& map = server().dma_maps.at(0x100000);
  EXPECT_EQ(map.request.argsz, 32u);
  EXPECT_EQ(map.request.flags, wire::kDmaReadable);
  EXPECT_EQ(map.request.offset, 4096u);
  EXPECT_EQ(map.request.size, 8192u);
  struct stat ours{}, theirs{};
  ASSERT_EQ(::fstat(memory.get(), &ours), 0);
  ASSERT_EQ(::fstat(map.fd.get(), &theirs), 0);
  EXPECT_EQ(ours.st_ino, theirs.st_ino);
  ASSERT_TRUE(device_->unmap_dma(Iova(0x100000), 8192));
  EXPECT_TRUE(server().dma_maps.empty());
}

TEST_F(Device, MapRefusesWhatCannotBe) {
  connect();
  const auto memory = base::make_memfd("memory", 16 * 4096).value();
  const int fd = memory.get();
  const auto map = [&](std::uint64_t offset, std::uint64_t size, std::uint64_t at) {
    const auto result = device_->map_dma(fd, offset, size, Iova(at), Rights::kReadWrite);
    return result ? Errc{} : result.error().code;
  };
  EXPECT_EQ(map(0, 0, 0), Errc::kInvalidArgument);
  EXPECT_EQ(map(0, 100, 0), Errc::kInvalidArgument);
  EXPECT_EQ(map(8, 4096, 0), Errc::kInvalidArgument);
  EXPECT_EQ(map(0, 4096, 8), Errc::kInvalidArgument);
  EXPECT_EQ(map(0, 8192, UINT64_MAX - 4095), Errc::kOutOfRange);
  EXPECT_EQ(map(15 * 4096, 8192, 0), Errc::kOutOfRange);
  EXPECT_EQ(map(0, 2 * 4096, 0x10000), Errc{});
  EXPECT_EQ(map(0, 4096, 0x10000), Errc::kExists);
  EXPECT_EQ(map(0, 4096, 0x11000), Errc::kExists);
  EXPECT_EQ(map(0, 3 * 4096, 0xf000), Errc::kExists);
  EXPECT_EQ(map(0, 4096, 0x12000), Errc{});
  EXPECT_EQ(map(0, 4096, 0xf000), Errc{});
  EXPECT_EQ(map(0, 4096, UINT64_MAX - 4095), Errc{});  // the last page there is
  EXPECT_EQ(device_->map_dma(-1, 0, 4096, Iova(0), Rights::kRead).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(server().count(Command::kDmaMap), 4u) << "refused ones must not reach the server";
}

TEST_F(Device, MapStopsAtTheServersLimit) {
  server().capabilities = R"({"capabilities": {"max_dma_maps": 2}})";
  auto options = patient();
  options.offer_wake = false;
  connect(options);
  const auto memory = base::make_memfd("memory", 4096).value();
  const auto map = [&](std::uint64_t at) {
    return device_->map_dma(memory.get(), 0, 4096, Iova(at), Rights::kRead);
  };
  ASSERT_TRUE(map(0));
  ASSERT_TRUE(map(0x1000));
  EXPECT_EQ(map(0x2000).error().code, Errc::kLimit);
  ASSERT_TRUE(device_->unmap_dma(Iova(0), 4096));
  EXPECT_TRUE(map(0x2000));
}

TEST_F(Device, UnmapWantsTheWholeMapping) {
  connect();
  const auto memory = base::make_memfd("memory", 2 * 4096).value();
  ASSERT_TRUE(device_->map_dma(memory.get(), 0, 8192, Iova(0x4000), Rights::kRead));
  EXPECT_EQ(device_->unmap_dma(Iova(0x4000), 4096).error().code, Errc::kNotFound);
  EXPECT_EQ(device_->unmap_dma(Iova(0x5000), 4096).error().code, Errc::kNotFound);
  ASSERT_TRUE(device_->unmap_dma(Iova(0x4000), 8192));
  EXPECT_EQ(device_->unmap_dma(Iova(0x4000), 8192).error().code, Errc::kNotFound);
}

TEST_F(Device, ManyMappingsOfOneFileTakeOneDescriptor) {
  connect();
  const auto memory = base::make_memfd("memory", 4096).value();
  const auto before = open_descriptors();
  for (std::uint64_t i = 0; i < 50; ++i)
    ASSERT_TRUE(device_->map_dma(memory.get(), 0, 4096, Iova(i * 4096), Rights::kRead));
  // The server, in this process too, has one for each.
  EXPECT_EQ(open_descriptors(), before + 50 + 1);
}

TEST_F(Device, ServerThatRefusesAnUnmapKeepsTheMapping) {
  connect();
  const auto memory = base::make_memfd("memory", 4096).value();
  ASSERT_TRUE(device_->map_dma(memory.get(), 0, 4096, Iova(0), Rights::kRead));
  server().script(Command::kDmaUnmap, [](ScriptedServer& s, const Packet&, Packet& reply) {
    reply.body.clear();
    reply.header.size = 16;
    reply.header.flags |= wire::kError;
    reply.header.error = EBUSY;
    s.send(reply);
  });
  EXPECT_EQ(device_->unmap_dma(Iova(0), 4096).error().code, Errc::kBusy);
  EXPECT_EQ(device_->map_dma(memory.get(), 0, 4096, Iova(0), Rights::kRead).error().code,
            Errc::kExists);
  server().script(Command::kDmaUnmap, nullptr);
  EXPECT_TRUE(device_->unmap_dma(Iova(0), 4096));
}

TEST_F(Device, MsixVectorsRing) {
  connect();  // the server takes 4 descriptors a message
  auto vectors = device_->arm_msix(9);
  ASSERT_TRUE(vectors) << vectors.error().message();
  ASSERT_EQ(vectors->size(), 9u);
  EXPECT_EQ(server().count(Command::kDeviceSetIrqs), 3u);
  const auto last = server().last(Command::kDeviceSetIrqs).as<wire::IrqSet>();
  EXPECT_EQ(last.argsz, 20u);
  EXPECT_EQ(last.flags, 4u | 32u);
  EXPECT_EQ(last.index, 2u);
  EXPECT_EQ(last.start, 8u);
  EXPECT_EQ(last.count, 1u);
  for (std::uint32_t i = 0; i < 9; ++i) {
    const std::uint64_t one = 1;
    ASSERT_EQ(::write(server().vectors.at(i).get(), &one, 8), 8);
    for (std::uint32_t j = 0; j < 9; ++j)
      EXPECT_EQ(signalled((*vectors)[j].get()), i == j) << i << " " << j;
  }
  ASSERT_TRUE(device_->disarm_msix());
  EXPECT_TRUE(server().vectors.empty());
  const auto sets = server().count(Command::kDeviceSetIrqs);
  ASSERT_TRUE(device_->disarm_msix());
  EXPECT_EQ(server().count(Command::kDeviceSetIrqs), sets);
}

TEST_F(Device, MsixVectorsThatAreNotThere) {
  connect();
  EXPECT_EQ(device_->arm_msix(10).error().code, Errc::kUnsupported);
  EXPECT_EQ(device_->arm_msix(0).error().code, Errc::kInvalidArgument);
  server().script(Command::kDeviceGetIrqInfo, [](ScriptedServer& s, const Packet&, Packet& reply) {
    reply.body = bytes_of(wire::IrqInfo{16, wire::kIrqEventfd | wire::kIrqNoResize, 2, 9});
    s.send(reply);
  });
  EXPECT_TRUE(device_->arm_msix(4));
  EXPECT_EQ(device_->arm_msix(5).error().code, Errc::kUnsupported)
      << "more than one message, but not to be resized";
  EXPECT_FALSE(device_->lost());
}

TEST_F(Device, FailureToArmDisarmsTheRest) {
  connect();
  server().script(Command::kDeviceSetIrqs,
                  [](ScriptedServer& s, const Packet& request, Packet& reply) {
                    if (request.as<wire::IrqSet>().start == 4) {
                      reply.header.flags |= wire::kError;
                      reply.header.error = ENOMEM;
                    }
                    s.send(reply);
                  });
  EXPECT_EQ(device_->arm_msix(9).error().code, Errc::kNoMemory);
  EXPECT_TRUE(server().vectors.empty());
}

TEST_F(Device, Reset) {
  connect();
  ASSERT_TRUE(device_->reset());
  EXPECT_EQ(server().resets, 1u);
}

TEST_F(Device, ResetThatTheDeviceCannotDo) {
  server().script(Command::kDeviceGetInfo, [](ScriptedServer& s, const Packet&, Packet& reply) {
    reply.body = bytes_of(wire::DeviceInfo{16, wire::kDeviceIsPci, 9, 5});
    s.send(reply);
  });
  connect();
  EXPECT_EQ(device_->reset().error().code, Errc::kUnsupported);
}

TEST_F(Device, EndDisarmsAndUnmaps) {
  connect();
  const auto memory = base::make_memfd("memory", 4096).value();
  ASSERT_TRUE(device_->map_dma(memory.get(), 0, 4096, Iova(0), Rights::kRead));
  ASSERT_TRUE(device_->map_dma(memory.get(), 0, 4096, Iova(0x8000), Rights::kRead));
  ASSERT_TRUE(device_->arm_msix(1));
  device_.reset();
  EXPECT_TRUE(server().dma_maps.empty());
  EXPECT_TRUE(server().vectors.empty());
}

TEST_F(Device, ErrorReplyLosesNothing) {
  connect();
  open_bar(BarIndex::k5);
  const auto refuse = [](ScriptedServer& s, const Packet&, Packet& reply) {
    reply.body.clear();
    reply.header.size = 16;
    reply.header.flags |= wire::kError;
    reply.header.error = EIO;
    s.send(reply);
  };
  server().script(Command::kRegionRead, refuse);
  EXPECT_EQ(bar_->read32(0), 0xffffffffu);
  EXPECT_EQ(bar_->read64(0), ~std::uint64_t{0});
  std::array<std::byte, 8> buffer;
  const auto error = bar_->read(0, buffer).error();
  EXPECT_EQ(error.code, Errc::kDeviceError);
  EXPECT_EQ(error.sys, EIO);
  EXPECT_EQ(device_->counters().error_replies, 3u);
  EXPECT_FALSE(device_->lost());
  server().script(Command::kRegionRead, nullptr);
  EXPECT_EQ(bar_->read32(0), 0u);
}

TEST_F(Device, RepliesMayOvertakeEachOther) {
  connect();
  open_bar(BarIndex::k5);
  // The reply to the map waits until a read has been answered.
  server().script(Command::kDmaMap, [](ScriptedServer& s, const Packet&, Packet& reply) {
    s.script(Command::kRegionRead, [late = std::make_shared<Packet>(std::move(reply))](
                                       ScriptedServer& s2, const Packet&, Packet& read) {
      s2.send(read);
      s2.send(*late);
      s2.script(Command::kRegionRead, nullptr);
    });
  });
  const auto memory = base::make_memfd("memory", 4096).value();
  std::thread worker(
      [&] { EXPECT_TRUE(device_->map_dma(memory.get(), 0, 4096, Iova(0), Rights::kRead)); });
  EXPECT_TRUE(server().wait_until([&] { return server().dma_maps.contains(0); }));
  EXPECT_EQ(bar_->read32(0x20), 0u);
  worker.join();
}

}  // namespace
}  // namespace vfio_test
