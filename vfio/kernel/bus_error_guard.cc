#include "vfio/kernel/bus_error_guard.h"

#include <signal.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>

namespace vfio {
namespace {

// A slot changes under the mutex alone; the handler reads it without. While `version` is odd it is
// being changed, and a reader that sees it change looks away: the area that it looks for is in use,
// so its own slot is at rest.
struct Slot {
  std::atomic<std::uint32_t> version = 0;
  std::atomic<std::byte*> at = nullptr;
  std::atomic<std::uint64_t> size = 0;  // 0: free
  std::atomic<const AllOnes*> ones = nullptr;
  std::atomic<Loss*> loss = nullptr;
  std::atomic<unsigned> bar = 0;
};

constexpr std::size_t kSlots = 1024;

std::array<Slot, kSlots> slots;
std::atomic<std::size_t> slots_used = 0;  // no slot from here on was ever taken
std::mutex slots_mutex;
struct sigaction previous;  // written before the handler can run

void set(Slot& slot, std::byte* at, std::uint64_t size, const AllOnes* ones, Loss* loss,
         unsigned bar) {
  slot.version.fetch_add(1, std::memory_order_acq_rel);
  slot.at.store(at, std::memory_order_release);
  slot.size.store(size, std::memory_order_release);
  slot.ones.store(ones, std::memory_order_release);
  slot.loss.store(loss, std::memory_order_release);
  slot.bar.store(bar, std::memory_order_release);
  slot.version.fetch_add(1, std::memory_order_acq_rel);
}

// Whether the fault was in this slot's area and all ones stand there now.
bool mend(const Slot& slot, std::uintptr_t fault) {
  const auto version = slot.version.load(std::memory_order_acquire);
  auto* const at = slot.at.load(std::memory_order_acquire);
  const auto size = slot.size.load(std::memory_order_acquire);
  const auto* const ones = slot.ones.load(std::memory_order_acquire);
  auto* const loss = slot.loss.load(std::memory_order_acquire);
  const auto bar = slot.bar.load(std::memory_order_acquire);
  if (version % 2 != 0 || slot.version.load(std::memory_order_acquire) != version) return false;
  if (size == 0 || fault - reinterpret_cast<std::uintptr_t>(at) >= size) return false;
  loss->note(LossReason::kBarGone, bar);
  // All of it: the next access would raise the next signal.
  return ones->stand_in(at, size);
}

// Hands a signal that is not ours on.
void pass_on(int signal, siginfo_t* info, void* context) {
  const bool of_an_access = info->si_code > 0;  // not sent by a process
  if ((previous.sa_flags & SA_SIGINFO) != 0) return previous.sa_sigaction(signal, info, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
    return previous.sa_handler(signal);
  if (previous.sa_handler == SIG_IGN && !of_an_access) return;
  // By default it ends the process, with the registers of the access in the core dump: the access
  // is done again. One that was sent is sent again, and waits until we have returned.
  struct sigaction standard{};
  standard.sa_handler = SIG_DFL;
  ::sigaction(signal, &standard, nullptr);
  if (!of_an_access) ::raise(signal);
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const auto fault = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (info->si_code == BUS_ADRERR || info->si_code == BUS_OBJERR) {
    const std::size_t used = slots_used.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < used; ++i)
      if (mend(slots[i], fault)) return;
  }
  pass_on(signal, info, context);
}

// Under the mutex.
base::Result<void> install() {
  static bool installed = false;
  if (installed) return {};
  // The old one first, by itself: the new one may run before sigaction() returns.
  if (::sigaction(SIGBUS, nullptr, &previous) != 0)
    return base::fail(base::Errc::kSystem, "handler of SIGBUS", errno);
  struct sigaction ours{};
  ours.sa_sigaction = on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  if (::sigaction(SIGBUS, &ours, nullptr) != 0)
    return base::fail(base::Errc::kSystem, "handler of SIGBUS", errno);
  installed = true;
  return {};
}

}  // namespace

base::Result<BusErrorGuard> BusErrorGuard::cover(std::byte* at, std::uint64_t size,
                                                 const AllOnes& ones, Loss& loss, unsigned bar) {
  const std::lock_guard lock(slots_mutex);
  if (auto ready = install(); !ready) return std::unexpected(ready.error());
  for (std::size_t i = 0; i < kSlots; ++i) {
    if (slots[i].size.load(std::memory_order_relaxed) != 0) continue;
    set(slots[i], at, size, &ones, &loss, bar);
    if (i >= slots_used.load(std::memory_order_relaxed))
      slots_used.store(i + 1, std::memory_order_release);
    return BusErrorGuard(i);
  }
  return base::fail(base::Errc::kLimit,
                    std::to_string(kSlots) + " mapped areas of BARs in this process");
}

BusErrorGuard& BusErrorGuard::operator=(BusErrorGuard&& other) noexcept {
  if (this != &other) {
    uncover();
    slot_ = std::exchange(other.slot_, kNone);
  }
  return *this;
}

void BusErrorGuard::uncover() {
  if (slot_ == kNone) return;
  const std::lock_guard lock(slots_mutex);
  set(slots[std::exchange(slot_, kNone)], nullptr, 0, nullptr, nullptr, 0);
}

}  // namespace vfio
