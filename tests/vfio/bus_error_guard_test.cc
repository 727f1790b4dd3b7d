// A memfd that is cut short stands in for a BAR that goes away: the next access is a SIGBUS.
#include "vfio/kernel/bus_error_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/address.h"
#include "base/shared_memory.h"

namespace vfio_test {
namespace {

using base::kPageSize;
using vfio::BusErrorGuard;
using vfio::Loss;

class Area {
 public:
  explicit Area(std::uint64_t pages)
      : file_(base::make_memfd("bar", pages * kPageSize, 0).value()),
        mapping_(
            base::Mapping::map(file_.get(), 0, pages * kPageSize, PROT_READ | PROT_WRITE).value()),
        ones_(vfio::AllOnes::create(pages * kPageSize).value()) {}

  void cover(Loss& loss, unsigned bar) {
    guard_.emplace(
        BusErrorGuard::cover(mapping_.data(), mapping_.size(), *ones_, loss, bar).value());
  }
  void uncover() { guard_.reset(); }
  void remove() { ASSERT_EQ(::ftruncate(file_.get(), 0), 0); }
  std::uint32_t read(std::size_t page) const {
    return std::atomic_ref(*mapping_.at<std::uint32_t>(page * kPageSize)).load();
  }
  void write(std::size_t page, std::uint32_t value) const {
    std::atomic_ref(*mapping_.at<std::uint32_t>(page * kPageSize)).store(value);
  }
  std::byte* data() const { return mapping_.data(); }

 private:
  base::UniqueFd file_;
  base::Mapping mapping_;
  std::unique_ptr<vfio::AllOnes> ones_;
  std::optional<BusErrorGuard> guard_;
};

TEST(BusErrorGuard, ReadsGiveAllOnesAndTheDeviceIsLost) {
  const auto loss = Loss::create().value();
  Area bar(8);
  bar.cover(*loss, 5);
  bar.write(3, 7);
  EXPECT_EQ(bar.read(3), 7u);
  EXPECT_FALSE(loss->lost());
  EXPECT_EQ(loss->why(), "");

  bar.remove();
  errno = ENXIO;
  EXPECT_EQ(bar.read(3), 0xffffffffu);
  EXPECT_EQ(errno, ENXIO);
  EXPECT_TRUE(loss->lost());
  EXPECT_NE(loss->why().find("BAR 5"), std::string::npos) << loss->why();
  std::uint64_t count = 0;
  EXPECT_EQ(::read(loss->event_fd(), &count, 8), 8) << "who polls is told";
  EXPECT_EQ(bar.read(7), 0xffffffffu);
}

TEST(BusErrorGuard, WritesGoNowhere) {
  const auto loss = Loss::create().value();
  Area bar(2);
  bar.cover(*loss, 0);
  bar.remove();
  bar.write(1, 7);
  EXPECT_TRUE(loss->lost());
}

TEST(BusErrorGuard, OnlyTheDeviceOfTheAreaIsLost) {
  const auto one = Loss::create().value();
  const auto other = Loss::create().value();
  Area a(2), b(2), c(2);
  a.cover(*one, 0);
  b.cover(*other, 1);
  c.cover(*one, 2);
  b.remove();
  EXPECT_EQ(b.read(0), 0xffffffffu);
  EXPECT_TRUE(other->lost());
  EXPECT_FALSE(one->lost());
  a.uncover();
  c.remove();
  EXPECT_EQ(c.read(0), 0xffffffffu);
  EXPECT_TRUE(one->lost());
}

TEST(BusErrorGuard, ManyThreadsAtOnce) {
  const auto loss = Loss::create().value();
  Area bar(64);
  bar.cover(*loss, 0);
  std::atomic<bool> go = false;
  std::atomic<unsigned> wrong = 0;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      while (!go) std::this_thread::yield();
      for (std::size_t page = i; page < 64; page += 8)
        if (bar.read(page) != 0xffffffffu) ++wrong;
    });
  bar.remove();
  go = true;
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_TRUE(loss->lost());
}

TEST(BusErrorGuard, SlotsComeBack) {
  const auto loss = Loss::create().value();
  std::vector<std::unique_ptr<BusErrorGuard>> guards;
  const auto ones = vfio::AllOnes::create(kPageSize).value();
  const auto cover = [&](std::uintptr_t page) {
    return BusErrorGuard::cover(reinterpret_cast<std::byte*>(page * kPageSize), kPageSize, *ones,
                                *loss, 0);
  };
  for (std::uintptr_t page = 1;; ++page) {
    auto guard = cover(page);
    if (!guard) {
      EXPECT_EQ(guard.error().code, base::Errc::kLimit);
      break;
    }
    guards.push_back(std::make_unique<BusErrorGuard>(std::move(*guard)));
  }
  EXPECT_EQ(guards.size(), 1024u);
  guards.erase(guards.begin() + 500);
  EXPECT_TRUE(cover(5000));
}

void no_core() {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
}

// In a process of its own: the handler stays for good.
TEST(BusErrorGuardDeath, OneThatIsNotCoveredStillEndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto end = [] {
    no_core();
    struct sigaction standard{};
    standard.sa_handler = SIG_DFL;  // a sanitizer's handler would end it otherwise
    ::sigaction(SIGBUS, &standard, nullptr);
    const auto loss = Loss::create().value();
    Area covered(1), bare(1);
    covered.cover(*loss, 0);
    bare.remove();
    (void)bare.read(0);
  };
  EXPECT_EXIT(end(), testing::KilledBySignal(SIGBUS), "");
}

TEST(BusErrorGuardDeath, OneThatWasSentEndsTheProcessToo) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto end = [] {
    no_core();
    struct sigaction standard{};
    standard.sa_handler = SIG_DFL;
    ::sigaction(SIGBUS, &standard, nullptr);
    const auto loss = Loss::create().value();
    Area covered(1);
    covered.cover(*loss, 0);
    ::kill(::getpid(), SIGBUS);
    for (;;) ::pause();
  };
  EXPECT_EXIT(end(), testing::KilledBySignal(SIGBUS), "");
}

TEST(BusErrorGuardDeath, WhoHadTheSignalBeforeGetsTheOthers) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto end = [] {
    struct sigaction before{};
    before.sa_sigaction = [](int, siginfo_t* info, void*) {
      ::_exit(info->si_code == BUS_ADRERR ? 42 : 43);
    };
    before.sa_flags = SA_SIGINFO;
    ::sigaction(SIGBUS, &before, nullptr);
    const auto loss = Loss::create().value();
    Area covered(1), bare(1);
    covered.cover(*loss, 0);
    covered.remove();
    if (covered.read(0) != 0xffffffffu || !loss->lost()) ::_exit(1);
    bare.remove();
    (void)bare.read(0);
    ::_exit(2);
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(42), "");
}

}  // namespace
}  // namespace vfio_test
