// The loop that owns devices: pollers while there is work, then one io_uring_enter to sleep in.
//
// Everything except post() and stop() is for the reactor's own thread. Callbacks run to completion
// on it; none may block, and a turn over the limit is reported with the handler's name
// (docs/architecture.md "Threads").
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "base/result.h"

namespace gpuumd {

using Clock = std::chrono::steady_clock;
using Duration = Clock::duration;
using TimePoint = Clock::time_point;
using Task = std::move_only_function<void()>;

// Cancels what it stands for when it goes: a timer, a poller or a watch. Must not outlive the
// reactor. Empty after cancel() or a move.
class Registration {
 public:
  Registration() = default;
  explicit Registration(std::move_only_function<void()> cancel) : cancel_(std::move(cancel)) {}
  Registration(Registration&& other) noexcept : cancel_(std::exchange(other.cancel_, nullptr)) {}
  Registration& operator=(Registration&& other) noexcept {
    if (this != &other) {
      cancel();
      cancel_ = std::exchange(other.cancel_, nullptr);
    }
    return *this;
  }
  ~Registration() { cancel(); }
  void cancel() {
    if (cancel_) std::exchange(cancel_, nullptr)();
  }
  explicit operator bool() const { return static_cast<bool>(cancel_); }

 private:
  std::move_only_function<void()> cancel_;
};

// A source of work that is looked at on every turn while the reactor is awake.
struct Poller {
  std::string_view name;
  // Does a bounded piece of work. True when there was some: the reactor then stays awake.
  std::move_only_function<bool()> poll;
  // Called right before sleeping and right after waking: publishes that the other side must ring
  // (a "sleeping" flag). After arm(true) poll() is called once more, so that nothing is missed.
  // May be empty.
  std::move_only_function<void(bool sleeping)> arm;
};

class Reactor {
 public:
  virtual ~Reactor() = default;

  virtual TimePoint now() const = 0;
  virtual bool on_thread() const = 0;

  // Runs `task` on the reactor thread, in order of posting. Any thread. Dropped after stop().
  virtual void post(Task task) = 0;

  // Once, `delay` from now (or as soon as possible). Destroying the registration cancels it.
  [[nodiscard]] virtual Registration after(Duration delay, std::string_view name, Task task) = 0;
  [[nodiscard]] virtual Registration add_poller(Poller poller) = 0;
  // `ready` whenever `fd` is readable (or hung up). With `eventfd` true the reactor reads the 8
  // bytes itself and passes nothing on but the wake. The descriptor must stay open while it is
  // watched.
  [[nodiscard]] virtual Registration watch(int fd, std::string_view name, bool eventfd,
                                           Task ready) = 0;
};

}  // namespace gpuumd
