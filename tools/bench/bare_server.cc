#include "tools/bench/bare_server.h"

#include <emmintrin.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "base/address.h"
#include "tools/bench/machine.h"

namespace bench {
namespace {

constexpr std::uint32_t kSlots = 64;
constexpr std::size_t kWords = 8;  // of a slot
enum Mode : std::uint32_t { kIdle, kPingPong, kPolled, kSleeping, kEnd };

using Word = std::atomic<std::uint64_t>;

struct Ring {
  alignas(128) Word tail{0};
  alignas(128) Word head{0};
  alignas(128) std::uint64_t slots[kSlots][kWords];

  bool empty() const {
    return tail.load(std::memory_order_acquire) == head.load(std::memory_order_relaxed);
  }
  void put(const std::uint64_t* words) {
    const auto at = tail.load(std::memory_order_relaxed);
    std::memcpy(slots[at % kSlots], words, sizeof(slots[0]));
    tail.store(at + 1, std::memory_order_release);
  }
  void take(std::uint64_t* words) {
    const auto at = head.load(std::memory_order_relaxed);
    std::memcpy(words, slots[at % kSlots], sizeof(slots[0]));
    head.store(at + 1, std::memory_order_release);
  }
};

void futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value) {
  ::syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

}  // namespace

struct BareServer::Shared {
  alignas(128) std::atomic<std::uint32_t> mode{kIdle};
  alignas(128) std::atomic<std::uint32_t> serving{kIdle};
  alignas(128) Word ping{0};
  alignas(128) Word pong{0};
  Ring requests, replies;
};

base::Result<std::unique_ptr<BareServer>> BareServer::start(int core) {
  std::unique_ptr<BareServer> self(new BareServer);
  auto memory = base::make_memfd("gpuumd-bench", base::align_up(sizeof(Shared), base::kPageSize));
  if (!memory) return std::unexpected(memory.error());
  auto mapping = base::Mapping::map(memory->get(), 0, sizeof(Shared), PROT_READ | PROT_WRITE);
  if (!mapping) return std::unexpected(mapping.error());
  self->memory_ = std::move(*mapping);
  self->shared_ = new (self->memory_.data()) Shared;
  self->to_server_.reset(::eventfd(0, EFD_CLOEXEC));
  self->to_client_.reset(::eventfd(0, EFD_CLOEXEC));
  if (!self->to_server_ || !self->to_client_)
    return base::fail(base::Errc::kSystem, "eventfd", errno);
  const pid_t parent = ::getpid();
  self->pid_ = ::fork();
  if (self->pid_ < 0) return base::fail(base::Errc::kSystem, "fork", errno);
  if (self->pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() == parent) {
      pin(core);
      self->serve();
    }
    ::_exit(0);
  }
  return self;
}

BareServer::~BareServer() {
  if (pid_ <= 0) return;
  shared_->mode.store(kEnd);
  futex(shared_->mode, FUTEX_WAKE, 1);
  ::waitpid(pid_, nullptr, 0);
}

void BareServer::serve() {
  for (;;) {
    const auto mode = shared_->mode.load(std::memory_order_acquire);
    shared_->serving.store(mode, std::memory_order_release);
    switch (mode) {
      case kIdle:
        futex(shared_->mode, FUTEX_WAIT, kIdle);
        break;
      case kPingPong:
        serve_ping_pong();
        break;
      case kPolled:
        serve_polled();
        break;
      case kSleeping:
        serve_sleeping();
        break;
      default:
        return;
    }
  }
}

void BareServer::serve_ping_pong() {
  auto seen = shared_->pong.load();
  while (shared_->mode.load(std::memory_order_relaxed) == kPingPong)
    if (shared_->ping.load(std::memory_order_acquire) == seen + 1)
      shared_->pong.store(++seen, std::memory_order_release);
}

void BareServer::serve_polled() {
  std::uint64_t words[kWords];
  while (shared_->mode.load(std::memory_order_relaxed) == kPolled) {
    if (shared_->requests.empty()) continue;
    shared_->requests.take(words);
    ++words[0];
    shared_->replies.put(words);
  }
}

void BareServer::serve_sleeping() {
  std::uint64_t words[kWords], count = 0;
  while (::read(to_server_.get(), &count, sizeof(count)) == sizeof(count) &&
         shared_->mode.load(std::memory_order_acquire) == kSleeping) {
    shared_->requests.take(words);
    ++words[0];
    shared_->replies.put(words);
    count = 1;
    (void)!::write(to_client_.get(), &count, sizeof(count));
  }
}

void BareServer::enter(std::uint32_t mode) {
  shared_->mode.store(mode, std::memory_order_release);
  futex(shared_->mode, FUTEX_WAKE, 1);
  while (shared_->serving.load(std::memory_order_acquire) != mode) _mm_pause();
}

void BareServer::leave() {
  const bool sleeps = shared_->mode.load() == kSleeping;
  shared_->mode.store(kIdle, std::memory_order_release);
  const std::uint64_t one = 1;
  if (sleeps) (void)!::write(to_server_.get(), &one, sizeof(one));
  while (shared_->serving.load(std::memory_order_acquire) != kIdle) _mm_pause();
}

void BareServer::send(std::uint64_t word) {
  std::uint64_t words[kWords];
  for (auto& each : words) each = word;
  shared_->requests.put(words);
}

void BareServer::receive() {
  std::uint64_t words[kWords];
  shared_->replies.take(words);
  asm volatile("" ::"m"(words));
}

Block BareServer::ping_pong(unsigned count) {
  return [this, block = timed(count, [this] {
                  const auto next = shared_->ping.load(std::memory_order_relaxed) + 1;
                  shared_->ping.store(next, std::memory_order_release);
                  while (shared_->pong.load(std::memory_order_acquire) != next) {
                  }
                })] {
    enter(kPingPong);
    const auto cost = block();
    leave();
    return cost;
  };
}

Block BareServer::polled_ring(unsigned count) {
  return [this, block = timed(count, [this] {
                  send(1);
                  while (shared_->replies.empty()) {
                  }
                  receive();
                })] {
    enter(kPolled);
    const auto cost = block();
    leave();
    return cost;
  };
}

Block BareServer::sleeping_ring(unsigned count, std::chrono::nanoseconds pause) {
  return [this, block = timed(
                    count,
                    [this] {
                      std::uint64_t word = 1;
                      send(word);
                      (void)!::write(to_server_.get(), &word, sizeof(word));
                      (void)!::read(to_client_.get(), &word, sizeof(word));
                      receive();
                    },
                    [pause] { spin(pause); })] {
    enter(kSleeping);
    const auto cost = block();
    leave();
    return cost;
  };
}

}  // namespace bench
