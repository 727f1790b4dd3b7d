// Every way in which a reply can be wrong, for every command: a typed error, a lost device where
// the stream can no longer be trusted, never a hang, a crash or a descriptor left behind.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <tuple>
#include <vector>

#include "rig.h"

namespace vfio_test {
namespace {

namespace wire = vfio::wire;

void send_resized(ScriptedServer& s, Packet& reply, std::size_t body) {
  reply.body.resize(body);
  reply.header.size = static_cast<std::uint32_t>(sizeof(Header) + body);
  s.send(reply);
}

struct Fault {
  const char* name;
  Errc expected;
  bool needs_body;  // cannot be done to a reply without a payload
  bool silent;      // seen only by the deadline
  ScriptedServer::Script script;
};

const Fault kFaults[] = {
    {"CutByAByte", Errc::kProtocol, true, false,
     [](ScriptedServer& s, const Packet&, Packet& r) {
       // Long before what any reply needs; the VERSION reply may lack its text.
       send_resized(s, r, std::min<std::size_t>(r.body.size() - 1, 3));
     }},
    {"WithoutPayload", Errc::kProtocol, true, false,
     [](ScriptedServer& s, const Packet&, Packet& r) { send_resized(s, r, 0); }},
    {"TooLong", Errc::kProtocol, false, false,
     [](ScriptedServer& s, const Packet&, Packet& r) { send_resized(s, r, 70'000); }},
    {"SizeOfFourGigabytes", Errc::kProtocol, false, false,
     [](ScriptedServer& s, const Packet&, Packet& r) {
       r.header.size = UINT32_MAX;
       s.send(r);
     }},
    {"SizeBelowTheHeader", Errc::kProtocol, false, false,
     [](ScriptedServer& s, const Packet&, Packet& r) {
       r.header.size = 15;
       s.send(r);
     }},
    {"SizeZero", Errc::kProtocol, false, false,
     [](ScriptedServer& s, const Packet&, Packet& r) {
       r.header.size = 0;
       s.send(r);
     }},
    {"UnknownId", Errc::kProtocol, false, false,
     [](ScriptedServer& s, const Packet&, Packet& r) {
       r.header.id ^= 0x4000;
       s.send(r);
     }},
    {"AnotherCommand", Errc::kProtocol, false, false,
     [](ScriptedServer& s, const Packet&, Packet& r) {
       r.header.command ^= 0x10;
       s.send(r);
     }},
    {"NeitherCommandNorReply", Errc::kProtocol, false, false,
     [](ScriptedServer& s, const Packet&, Packet& r) {
       r.header.flags = 2;
       s.send(r);
     }},
    {"ErrorWithPayload", Errc::kProtocol, false, false,
     [](ScriptedServer& s, const Packet&, Packet& r) {
       r.header.flags |= wire::kError;
       r.header.error = EIO;
       send_resized(s, r, 16);
     }},
    {"ErrorWithDescriptor", Errc::kProtocol, false, false,
     [](ScriptedServer& s, const Packet&, Packet& r) {
       r.header.flags |= wire::kError;
       r.header.error = EIO;
       r.send_fds = {s.bar0.get()};
       send_resized(s, r, 0);
     }},
    {"TooManyDescriptors", Errc::kProtocol, false, false,
     [](ScriptedServer& s, const Packet&, Packet& r) {
       r.send_fds.assign(20, s.bar0.get());
       s.send(r);
     }},
    {"ADescriptorMore", Errc::kProtocol, false, false,
     [](ScriptedServer& s, const Packet&, Packet& r) {
       r.send_fds.push_back(s.bar0.get());
       s.send(r);
     }},
    {"HangUp", Errc::kDisconnected, false, false,
     [](ScriptedServer& s, const Packet&, Packet&) { s.hang_up(); }},
    {"HangUpInTheHeader", Errc::kDisconnected, false, false,
     [](ScriptedServer& s, const Packet&, Packet& r) {
       const Bytes header = bytes_of(r.header);
       s.send_raw(std::span(header).first(7));
       s.hang_up();
     }},
    {"HangUpInThePayload", Errc::kDisconnected, true, false,
     [](ScriptedServer& s, const Packet&, Packet& r) {
       s.send_raw(bytes_of(r.header), r.send_fds);
       s.hang_up();
     }},
    {"Silence", Errc::kTimeout, false, true, [](ScriptedServer&, const Packet&, Packet&) {}},
    {"SilenceInThePayload", Errc::kTimeout, true, true,
     [](ScriptedServer& s, const Packet&, Packet& r) {
       s.send_raw(bytes_of(r.header), r.send_fds);
     }},
};

// A call that uses a command, after what it needs has been done.
struct Call {
  const char* name;
  Command command;
  bool has_body;
  bool while_connecting;
};

const Call kCalls[] = {
    {"Version", Command::kVersion, true, true},
    {"DeviceInfo", Command::kDeviceGetInfo, true, true},
    {"ConfigRegionInfo", Command::kDeviceGetRegionInfo, true, true},
    {"Identity", Command::kRegionRead, true, true},
    {"OpenBar", Command::kDeviceGetRegionInfo, true, false},
    {"ReadConfig", Command::kRegionRead, true, false},
    {"WriteConfig", Command::kRegionWrite, true, false},
    {"Map", Command::kDmaMap, false, false},
    {"Unmap", Command::kDmaUnmap, true, false},
    {"IrqInfo", Command::kDeviceGetIrqInfo, true, false},
    {"Arm", Command::kDeviceSetIrqs, false, false},
    {"Reset", Command::kDeviceReset, false, false},
};

class Hostile : public Rig, public testing::WithParamInterface<std::tuple<Call, Fault>> {
 protected:
  Errc run(const Call& call) {
    const std::string name = call.name;
    const auto memory = base::make_memfd("memory", 4096).value();
    if (name == "Unmap") {
      server().script(call.command, nullptr);
      EXPECT_TRUE(device_->map_dma(memory.get(), 0, 4096, Iova(0), Rights::kRead));
      server().script(call.command, std::get<1>(GetParam()).script);
      return code(device_->unmap_dma(Iova(0), 4096));
    }
    if (name == "Map") return code(device_->map_dma(memory.get(), 0, 4096, Iova(0), Rights::kRead));
    if (name == "OpenBar") return code(device_->open_bar(BarIndex::k0));
    if (name == "ReadConfig") return code(device_->read_config(0, 4));
    if (name == "WriteConfig") return code(device_->write_config(4, 2, 0));
    if (name == "Reset") return code(device_->reset());
    return code(device_->arm_msix(2));
  }
  template <class T>
  static Errc code(const base::Result<T>& result) {
    return result ? Errc{} : result.error().code;
  }
};

TEST_P(Hostile, GivesATypedErrorAndLosesTheDevice) {
  const auto& [call, fault] = GetParam();
  const auto options = fault.silent ? hasty() : patient();
  if (call.while_connecting) {
    server().script(call.command, fault.script);
    EXPECT_EQ(code(try_connect(options)), fault.expected);
    return;
  }
  connect(options);
  server().script(call.command, fault.script);
  EXPECT_EQ(run(call), fault.expected);
  expect_lost();
}

std::vector<std::tuple<Call, Fault>> all_faults() {
  std::vector<std::tuple<Call, Fault>> all;
  for (const Call& call : kCalls)
    for (const Fault& fault : kFaults)
      if (call.has_body || !fault.needs_body) all.emplace_back(call, fault);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Replies, Hostile, testing::ValuesIn(all_faults()),
                         [](const testing::TestParamInfo<Hostile::ParamType>& info) {
                           return std::string(std::get<0>(info.param).name) +
                                  std::get<1>(info.param).name;
                         });

using Nonsense = Rig;

void answer_with(ScriptedServer& server, Command command, Bytes body) {
  server.script(command, [body](ScriptedServer& s, const Packet&, Packet& reply) {
    reply.body = body;
    send_resized(s, reply, body.size());
  });
}

TEST_F(Nonsense, ReplyThatComesTwice) {
  connect();
  server().script(Command::kDeviceReset, [](ScriptedServer& s, const Packet&, Packet& reply) {
    s.send(reply);
    s.send(reply);
  });
  EXPECT_TRUE(device_->reset());
  while (!device_->lost()) device_->handle_events();
  expect_lost();
}

TEST_F(Nonsense, ReplyAfterTheDeadline) {
  connect(hasty());
  // Shared: the server's thread may look at it once more when the test is over.
  const auto release = std::make_shared<std::atomic<bool>>(false);
  server().script(Command::kDeviceReset,
                  [release](ScriptedServer& s, const Packet&, Packet& reply) {
                    while (!*release) std::this_thread::sleep_for(1ms);
                    s.send(reply);
                  });
  EXPECT_EQ(device_->reset().error().code, Errc::kTimeout);
  *release = true;
  expect_lost();
}

TEST_F(Nonsense, EchoOfAnotherAccess) {
  connect();
  open_bar(BarIndex::k5);
  answer_with(server(), Command::kRegionRead, bytes_of(wire::RegionAccess{8, 5, 4}, 7u));
  EXPECT_EQ(bar_->read32(4), 0xffffffffu);
  expect_lost();
}

TEST_F(Nonsense, EchoOfAnotherUnmap) {
  connect();
  const auto memory = base::make_memfd("memory", 4096).value();
  ASSERT_TRUE(device_->map_dma(memory.get(), 0, 4096, Iova(0), Rights::kRead));
  answer_with(server(), Command::kDmaUnmap, bytes_of(wire::DmaUnmap{24, 0, 4096, 4096}));
  EXPECT_EQ(device_->unmap_dma(Iova(0), 4096).error().code, Errc::kProtocol);
  expect_lost();
}

TEST_F(Nonsense, InfoOfAnotherInterrupt) {
  connect();
  answer_with(server(), Command::kDeviceGetIrqInfo, bytes_of(wire::IrqInfo{16, 1, 1, 9}));
  EXPECT_EQ(device_->arm_msix(1).error().code, Errc::kProtocol);
  expect_lost();
}

TEST_F(Nonsense, NotPci) {
  answer_with(server(), Command::kDeviceGetInfo, bytes_of(wire::DeviceInfo{16, 1, 9, 5}));
  EXPECT_EQ(try_connect().error().code, Errc::kUnsupported);
}

TEST_F(Nonsense, NoConfigSpace) {
  answer_with(server(), Command::kDeviceGetInfo, bytes_of(wire::DeviceInfo{16, 3, 7, 5}));
  EXPECT_EQ(try_connect().error().code, Errc::kProtocol);
}

TEST_F(Nonsense, ConfigSpaceOfAByte) {
  answer_with(server(), Command::kDeviceGetRegionInfo,
              bytes_of(wire::RegionInfo{32, 3, 7, 0, 1, 0}));
  EXPECT_EQ(try_connect().error().code, Errc::kProtocol);
}

TEST_F(Nonsense, BusyServer) {
  server().script(Command::kVersion, [](ScriptedServer& s, const Packet&, Packet& reply) {
    reply.header.flags |= wire::kError;
    reply.header.error = EBUSY;
    reply.send_fds.clear();
    send_resized(s, reply, 0);
  });
  const auto error = try_connect().error();
  EXPECT_EQ(error.code, Errc::kBusy);
  EXPECT_EQ(error.message(), "VERSION refused by the server: busy (errno 16)");
}

TEST_F(Nonsense, GarbageJson) {
  server().capabilities = "{\"capabilities\": {";
  EXPECT_EQ(try_connect().error().code, Errc::kProtocol);
}

TEST_F(Nonsense, WakePageThatIsNotSealed) {
  const auto loose = base::make_memfd("loose", 4096, 0).value();
  server().script(Command::kVersion, [&](ScriptedServer& s, const Packet&, Packet& reply) {
    reply.send_fds[0] = loose.get();
    s.send(reply);
  });
  EXPECT_EQ(try_connect().error().code, Errc::kProtocol);
}

TEST_F(Nonsense, WakePageThatIsTooSmall) {
  const auto small = base::make_memfd("small", 8).value();
  server().script(Command::kVersion, [&](ScriptedServer& s, const Packet&, Packet& reply) {
    reply.send_fds[0] = small.get();
    s.send(reply);
  });
  EXPECT_EQ(try_connect().error().code, Errc::kProtocol);
}

// A write into a pipe whose reader has gone would be a SIGPIPE.
TEST_F(Nonsense, WakeDescriptorThatIsNoEventfd) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const base::UniqueFd in(ends[0]), out(ends[1]);
  server().script(Command::kVersion, [&](ScriptedServer& s, const Packet&, Packet& reply) {
    reply.send_fds[1] = out.get();
    s.send(reply);
  });
  EXPECT_EQ(try_connect().error().code, Errc::kProtocol);
}

TEST_F(Nonsense, RegionLargerThanItsMemory) {
  connect();
  const auto small = base::make_memfd("small", kBar0Size - 4096).value();
  server().script(Command::kDeviceGetRegionInfo,
                  [&](ScriptedServer& s, const Packet&, Packet& reply) {
                    if (!reply.send_fds.empty()) reply.send_fds = {small.get()};
                    s.send(reply);
                  });
  EXPECT_EQ(device_->open_bar(BarIndex::k0).error().code, Errc::kProtocol);
  expect_lost();
}

TEST_F(Nonsense, CapabilityChainThatLoops) {
  connect();
  server().script(Command::kDeviceGetRegionInfo,
                  [](ScriptedServer& s, const Packet&, Packet& reply) {
                    base::store(std::span(reply.body), sizeof(wire::RegionInfo) + 4,
                                std::uint32_t{sizeof(wire::RegionInfo)});
                    s.send(reply);
                  });
  EXPECT_EQ(device_->open_bar(BarIndex::k5).error().code, Errc::kProtocol);
  expect_lost();
}

TEST_F(Nonsense, RegionInfoThatNeverFits) {
  connect();
  server().script(Command::kDeviceGetRegionInfo,
                  [](ScriptedServer& s, const Packet& request, Packet& reply) {
                    const auto asked = request.as<wire::RegionInfo>().argsz;
                    base::store(std::span(reply.body), 0, asked + 8);
                    s.send(reply);
                  });
  EXPECT_EQ(device_->open_bar(BarIndex::k5).error().code, Errc::kProtocol);
  EXPECT_EQ(server().count(Command::kDeviceGetRegionInfo), 3u);  // config, and the BAR twice
  expect_lost();
}

TEST_F(Nonsense, LostMappedBarReadsAllOnes) {
  connect();
  open_bar(BarIndex::k0);
  bar_->write32(0, 1);
  server().hang_up();
  while (!device_->lost()) device_->handle_events();
  EXPECT_EQ(bar_->read32(0), 0xffffffffu);
  EXPECT_EQ(bar_->read64(8), ~std::uint64_t{0});
  bar_->write32(0, 2);
  bar_->ring_doorbell32(0, 3);
  EXPECT_EQ(*server().bar0_memory.at<std::uint32_t>(0), 1u);
  std::array<std::byte, 4> buffer;
  EXPECT_EQ(bar_->read(0, buffer).error().code, Errc::kDeviceLost);
  EXPECT_EQ(bar_->write(0, buffer).error().code, Errc::kDeviceLost);
}

TEST_F(Nonsense, ServerThatTakesNoPostedWrites) {
  connect(hasty());
  open_bar(BarIndex::k5);
  const auto release = std::make_shared<std::atomic<bool>>(false);
  server().script(Command::kRegionWrite, [release](ScriptedServer&, const Packet&, Packet&) {
    while (!*release) std::this_thread::sleep_for(1ms);
  });
  for (int i = 0; i < 200'000 && !device_->lost(); ++i) bar_->write64(0, 1);
  EXPECT_TRUE(device_->lost());
  *release = true;
}

}  // namespace
}  // namespace vfio_test
