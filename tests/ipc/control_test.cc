// The control thread: handshake, limits, sessions, queries, and what it does with bad manners.
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>

#include "daemon/ipc/listener.h"
#include "tests/ipc/fixture.h"
#include "tests/ipc/raw_client.h"

namespace gpuumd::fake {
namespace {

using wire::MessageType;

TEST(Handshake, WelcomesAClient) {
  Daemon daemon({}, 2);
  RawClient client(daemon.directory);
  ASSERT_TRUE(client.send(RawClient::hello()));
  const auto answer = client.receive();
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->type(), MessageType::kWelcome);
  const auto welcome = answer->as<wire::Welcome>();
  EXPECT_EQ(welcome.version, wire::kVersion);
  EXPECT_EQ(welcome.device_count, 2u);
  EXPECT_NE(welcome.boot_id, 0u);
}

TEST(Handshake, SilentClientIsClosedAtTheDeadline) {
  Daemon daemon({.handshake_deadline = std::chrono::milliseconds(50)});
  RawClient silent(daemon.directory);
  EXPECT_TRUE(silent.closed());
  EXPECT_TRUE(eventually([&] { return daemon.control->counters().handshake_timeouts == 1; }));
  EXPECT_EQ(daemon.control->counters().connections, 0u);
}

TEST(Handshake, ShakenClientOutlivesTheDeadline) {
  Daemon daemon({.handshake_deadline = std::chrono::milliseconds(50)});
  RawClient client(daemon.directory);
  ASSERT_TRUE(client.shake_hands());
  RawClient silent(daemon.directory);
  EXPECT_TRUE(silent.closed());
  const auto opened = client.open_session();
  ASSERT_TRUE(opened);
  EXPECT_EQ(opened->type(), MessageType::kSessionOpened);
}

TEST(Handshake, WrongVersionIsNamed) {
  Daemon daemon;
  RawClient client(daemon.directory);
  auto hello = RawClient::hello();
  hello.version = hello.min_version = wire::kVersion + 7;
  ASSERT_TRUE(client.send(hello));
  const auto answer = client.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status(), GPUUMD_WRONG_VERSION);
  EXPECT_NE(answer->text().find("8 to 8"), std::string::npos) << answer->text();
  EXPECT_TRUE(client.closed());
}

TEST(Handshake, NewerClientThatStillSpeaksOursIsWelcome) {
  Daemon daemon;
  RawClient client(daemon.directory);
  auto hello = RawClient::hello();
  hello.version = wire::kVersion + 7;
  ASSERT_TRUE(client.send(hello));
  const auto answer = client.receive();
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->type(), MessageType::kWelcome);
  EXPECT_EQ(answer->as<wire::Welcome>().version, wire::kVersion);
}

TEST(Handshake, VMB_16_ReservedFieldsAreRefused) {
  Daemon daemon;
  RawClient client(daemon.directory);
  auto hello = RawClient::hello();
  hello.reserved[1] = 1;
  ASSERT_TRUE(client.send(hello));
  const auto answer = client.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status(), GPUUMD_INVALID_ARGUMENT);
}

// Each of these costs its sender the connection, and nobody else anything.
TEST(Handshake, BrokenMessagesCloseTheConnectionOnly) {
  Daemon daemon;
  RawClient bystander(daemon.directory);
  ASSERT_TRUE(bystander.shake_hands());
  const auto refused = [&](auto misbehave) {
    RawClient client(daemon.directory);
    misbehave(client);
    return client.closed();
  };
  EXPECT_TRUE(refused([](RawClient& client) { client.open_session(); })) << "before the handshake";
  EXPECT_TRUE(refused([](RawClient& client) {
    client.shake_hands();
    client.send(RawClient::hello());
  })) << "second handshake";
  EXPECT_TRUE(refused([](RawClient& client) {
    auto hello = RawClient::hello();
    hello.header.size = 5;
    client.send(hello);
  })) << "size that lies";
  EXPECT_TRUE(refused([](RawClient& client) {
    const std::byte few[3] = {};
    client.send_bytes(few);
  })) << "shorter than a header";
  EXPECT_TRUE(refused([](RawClient& client) {
    client.shake_hands();
    std::vector<std::byte> huge(wire::kMaxMessage + 1);
    base::store(
        std::span(huge), 0,
        wire::MessageHeader{MessageType::kQuery, static_cast<std::uint32_t>(huge.size()), 1});
    client.send_bytes(huge);
  })) << "too large";
  EXPECT_TRUE(refused([](RawClient& client) {
    client.shake_hands();
    client.send(wire::CloseSession{{static_cast<MessageType>(999), 0, 1}, 1});
  })) << "unknown type";
  EXPECT_TRUE(refused([](RawClient& client) {
    client.shake_hands();
    client.send(wire::ListDevices{{MessageType::kListDevices, 0, 1}}, {0});
  })) << "descriptor nobody asked for";
  EXPECT_TRUE(eventually([&] { return daemon.control->counters().connections == 1; }));
  EXPECT_TRUE(bystander.open_session());
}

TEST(Limits, ConnectionsOfAUid) {
  Daemon daemon({.max_connections_per_uid = 3});
  std::vector<RawClient> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back(daemon.directory);
    ASSERT_TRUE(clients.back().shake_hands());
  }
  RawClient fourth(daemon.directory);
  const auto answer = fourth.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status(), GPUUMD_LIMIT);
  EXPECT_NE(answer->text().find("3 connections"), std::string::npos) << answer->text();
  clients.pop_back();
  EXPECT_TRUE(eventually([&] { return daemon.control->counters().connections == 2; }));
  RawClient again(daemon.directory);
  EXPECT_TRUE(again.shake_hands());
}

TEST(Limits, DefaultsAreThoseOfTheDesign) {
  const ControlConfig config;
  EXPECT_EQ(config.max_connections_per_uid, 64u);
  EXPECT_EQ(config.max_sessions_per_uid, 256u);
  EXPECT_EQ(config.max_sessions, 1024u);
  EXPECT_EQ(config.handshake_deadline, std::chrono::seconds(1));
}

TEST(Limits, SessionsOfAUidAndInAll) {
  for (const bool in_all : {false, true}) {
    ControlConfig config;
    (in_all ? config.max_sessions : config.max_sessions_per_uid) = 2;
    Daemon daemon(config, 3);
    RawClient client(daemon.directory);
    ASSERT_TRUE(client.shake_hands());
    ASSERT_EQ(client.open_session(0)->type(), MessageType::kSessionOpened);
    ASSERT_EQ(client.open_session(1)->type(), MessageType::kSessionOpened);
    EXPECT_EQ(client.open_session(2)->status(), GPUUMD_LIMIT);
    EXPECT_EQ(daemon.control->counters().sessions, 2u);
  }
}

TEST(Sessions, OneAConnectionAndDevice) {
  Daemon daemon({}, 2);
  RawClient client(daemon.directory);
  ASSERT_TRUE(client.shake_hands());
  ASSERT_EQ(client.open_session(0)->type(), MessageType::kSessionOpened);
  EXPECT_EQ(client.open_session(0)->status(), GPUUMD_EXISTS);
  const auto by_name = client.open_session(0, "sim:1");
  ASSERT_EQ(by_name->type(), MessageType::kSessionOpened);
  EXPECT_EQ(by_name->as<wire::SessionOpened>().device.index, 1u);
  EXPECT_EQ(client.open_session(7)->status(), GPUUMD_NOT_FOUND);
  const auto nobody = client.open_session(0, "sim:9");
  EXPECT_EQ(nobody->status(), GPUUMD_NOT_FOUND);
  EXPECT_NE(nobody->text().find("'sim:9'"), std::string::npos) << nobody->text();
}

TEST(Sessions, CloseAndOpenAgain) {
  Daemon daemon;
  RawClient client(daemon.directory);
  ASSERT_TRUE(client.shake_hands());
  for (int i = 0; i < 3; ++i) {
    const auto opened = client.open_session();
    ASSERT_EQ(opened->type(), MessageType::kSessionOpened);
    const auto session = opened->as<wire::SessionOpened>().session;
    client.send(wire::CloseSession{{MessageType::kCloseSession, 0, 9}, session});
    const auto closed = client.receive();
    ASSERT_TRUE(closed);
    EXPECT_EQ(closed->type(), MessageType::kSessionClosed);
  }
  EXPECT_EQ(daemon.host().knobs.closed, 3);
  client.send(wire::CloseSession{{MessageType::kCloseSession, 0, 9}, 1});
  EXPECT_EQ(client.receive()->status(), GPUUMD_NOT_FOUND) << "closed already";
}

TEST(Sessions, AnothersSessionIsNotFound) {
  Daemon daemon;
  RawClient owner(daemon.directory), other(daemon.directory);
  ASSERT_TRUE(owner.shake_hands());
  ASSERT_TRUE(other.shake_hands());
  const auto session = owner.open_session()->as<wire::SessionOpened>().session;
  other.send(wire::CloseSession{{MessageType::kCloseSession, 0, 9}, session});
  EXPECT_EQ(other.receive()->status(), GPUUMD_NOT_FOUND);
  EXPECT_EQ(daemon.host().knobs.closed, 0);
}

TEST(Sessions, EverythingEndsWithTheClient) {
  Daemon daemon({}, 2);
  std::size_t before = 0;
  for (int round = 0; round < 5; ++round) {
    if (round == 1) before = open_descriptors();  // the hosts have what they keep
    RawClient client(daemon.directory);
    ASSERT_TRUE(client.shake_hands());
    RawSession first(*client.open_session(0));
    RawSession second(*client.open_session(1));
    wire::CreateBuffer buffer{};
    buffer.kind = GPUUMD_BUFFER_HOST;
    buffer.bytes = 8192;
    ASSERT_EQ(first.call(wire::RequestType::kCreateBuffer, buffer)->header.status, GPUUMD_OK);
    EXPECT_EQ(daemon.host().knobs.objects, 1);
    client.hang_up();
    EXPECT_TRUE(eventually([&] { return daemon.control->counters().sessions == 0; }));
    EXPECT_TRUE(first.over());
  }
  EXPECT_EQ(daemon.host().knobs.objects, 0);
  EXPECT_EQ(daemon.host().knobs.sessions, 0);
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before; }))
      << before << " before, " << open_descriptors() << " after";
}

// The child still has the socket: no hang-up ever comes. The pidfd says that the client has ended.
TEST(Sessions, EndOfTheProcessCountsEvenIfAChildKeepsTheSocket) {
  Daemon daemon;
  int block[2];
  ASSERT_EQ(::pipe2(block, O_CLOEXEC), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    RawClient client(daemon.directory);
    if (!client.shake_hands() || !client.open_session()) ::_exit(1);
    if (::fork() == 0) {  // keeps the socket until the test is done
      ::close(block[1]);
      char byte;
      (void)!::read(block[0], &byte, 1);
    }
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_EQ(status, 0);
  EXPECT_TRUE(eventually([&] { return daemon.host().knobs.closed == 1; }));
  EXPECT_TRUE(eventually([&] { return daemon.control->counters().connections == 0; }));
  ::close(block[1]);
  ::close(block[0]);
}

TEST(Sessions, StopWaitsForTheHandlers) {
  Daemon daemon;
  RawClient client(daemon.directory);
  ASSERT_TRUE(client.shake_hands());
  ASSERT_TRUE(client.open_session());
  daemon.host().knobs.hold_close = true;
  daemon.expect_unclean = true;
  const auto stopped = daemon.control->stop(std::chrono::milliseconds(50));
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, base::Errc::kTimeout);
  daemon.on_reactor([&] { daemon.host().last_session->finish_close(); });
}

TEST(Queries, OneDeviceAndAll) {
  Daemon daemon({}, 2);
  RawClient client(daemon.directory);
  ASSERT_TRUE(client.shake_hands());
  const auto ask = [&](std::uint32_t kind, std::uint32_t device) {
    wire::Query query{};
    query.header = {MessageType::kQuery, 0, 5};
    query.kind = kind;
    query.device = device;
    client.send(query);
    auto answer = client.receive();
    if (answer->type() != MessageType::kQueryReply) return std::to_string(answer->status());
    std::string text(answer->as<wire::QueryReply>().bytes, 0);
    EXPECT_EQ(::pread(answer->descriptors.at(0).get(), text.data(), text.size(), 0),
              static_cast<ssize_t>(text.size()));
    EXPECT_LT(::pwrite(answer->descriptors[0].get(), "x", 1, 0), 0) << "sealed";
    return text;
  };
  EXPECT_EQ(ask(GPUUMD_QUERY_STATUS, 1), "{\"kind\":1}");
  EXPECT_EQ(ask(GPUUMD_QUERY_FAULTS, GPUUMD_ALL_DEVICES), "[{\"kind\":6},{\"kind\":6}]");
  EXPECT_EQ(ask(99, 0), std::to_string(GPUUMD_INVALID_ARGUMENT));
  EXPECT_EQ(ask(GPUUMD_QUERY_STATUS, 2), std::to_string(GPUUMD_NOT_FOUND));
}

TEST(Queries, UpdatedDeviceIsListed) {
  Daemon daemon;
  auto info = device_info("sim:0");
  info.accelerator_id = 77;
  daemon.control->update_device(info);
  RawClient client(daemon.directory);
  ASSERT_TRUE(client.shake_hands());
  client.send(wire::ListDevices{{MessageType::kListDevices, 0, 3}});
  const auto answer = client.receive();
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->as<wire::Devices>().count, 1u);
  EXPECT_EQ(base::load<wire::DeviceInfo>(answer->bytes, sizeof(wire::Devices)).accelerator_id, 77u);
}

TEST(RuntimeDirectory, SecondDaemonIsToldWhoHasIt) {
  Daemon daemon;
  const auto second = ControlThread::start({.runtime_dir = daemon.directory}, {});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, base::Errc::kBusy);
  EXPECT_NE(second.error().step.find("pid " + std::to_string(::getpid())), std::string::npos)
      << second.error().step;
}

TEST(RuntimeDirectory, MissingOrTooLong) {
  const auto missing = ControlThread::start({.runtime_dir = "/nonexistent/gpuumd"}, {});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, base::Errc::kNotFound);
  const auto long_path = ControlThread::start({.runtime_dir = "/tmp/" + std::string(200, 'x')}, {});
  ASSERT_FALSE(long_path);
  EXPECT_EQ(long_path.error().code, base::Errc::kInvalidArgument);
}

TEST(RuntimeDirectory, SocketOfADeadDaemonIsReplaced) {
  const std::string directory = make_directory();
  const pid_t pid = ::fork();
  if (pid == 0) {  // dies without cleaning up
    Listener* leak = new Listener(std::move(Listener::open(directory, 0666).value()));
    ::_exit(leak->fd() >= 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_EQ(status, 0);
  {
    Daemon daemon({.runtime_dir = directory});
    RawClient client(daemon.directory);
    EXPECT_TRUE(client.shake_hands());
  }
  EXPECT_FALSE(std::filesystem::exists(directory + "/" + wire::kSocketName))
      << "removed at the end";
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace gpuumd::fake
