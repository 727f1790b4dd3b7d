#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "base/fd.h"
#include "vfio/pci_device.h"

namespace vfio_test {
namespace {

using base::Errc;

class OpenDevice : public testing::Test {
 protected:
  OpenDevice() {
    std::string pattern = testing::TempDir() + "vfioXXXXXX";
    directory_ = ::mkdtemp(pattern.data());
    path_ = directory_ + "/0.sock";
  }
  ~OpenDevice() override {
    ::unlink(path_.c_str());
    ::rmdir(directory_.c_str());
  }
  base::UniqueFd bound() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path_.c_str());
    base::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return socket;
  }
  base::Error error() const { return vfio::open_device("vfio-user:" + path_).error(); }

  std::string directory_;
  std::string path_;
};

TEST_F(OpenDevice, UnknownForms) {
  for (const char* name : {"", "sim", "0000:03:00.0", "vfio-user", "/run/x.sock"}) {
    const auto error = vfio::open_device(name).error();
    EXPECT_EQ(error.code, Errc::kInvalidArgument) << name;
    EXPECT_NE(error.step.find("vfio-user:PATH"), std::string::npos) << error.step;
    EXPECT_EQ(error.step.find('\n'), std::string::npos);
  }
}

TEST_F(OpenDevice, ADeviceOfTheKernelThatIsNotThere) {
  EXPECT_EQ(vfio::open_device("pci:ffff:ff:1f.7").error().code, Errc::kNotFound);
  EXPECT_EQ(vfio::open_device("pci:nonsense").error().code, Errc::kInvalidArgument);
}

TEST_F(OpenDevice, PathsThatCannotBe) {
  EXPECT_EQ(vfio::open_device("vfio-user:").error().code, Errc::kInvalidArgument);
  EXPECT_EQ(vfio::open_device("vfio-user:/" + std::string(200, 'x')).error().code,
            Errc::kInvalidArgument);
}

TEST_F(OpenDevice, NothingThere) {
  EXPECT_EQ(error().code, Errc::kNotFound);
  const auto dead = bound();  // bound, but nobody listens
  EXPECT_EQ(error().code, Errc::kNotFound);
  EXPECT_EQ(error().message().find(path_), std::string::npos) << "the caller names it";
}

TEST_F(OpenDevice, ServerThatTakesNobodyElse) {
  const auto listener = bound();
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path_.c_str());
  const base::UniqueFd other(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(other.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(error().code, Errc::kBusy);
}

// The place of a client that was killed is free a moment later.
TEST_F(OpenDevice, ServerThatIsBusyForAMomentIsWaitedFor) {
  const auto listener = bound();
  ASSERT_EQ(::listen(listener.get(), 4), 0);
  std::atomic<int> turned_away = 0;
  std::thread server([&] {
    while (turned_away < 3) {
      const base::UniqueFd client(::accept(listener.get(), nullptr, nullptr));
      ++turned_away;
    }
    ::unlink(path_.c_str());
  });
  EXPECT_EQ(error().code, Errc::kNotFound) << "what it met at the last try";
  server.join();
  EXPECT_EQ(turned_away, 3);
}

}  // namespace
}  // namespace vfio_test
