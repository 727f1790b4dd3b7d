#include "daemon/gpu/engine/lsdma.h"

#include <cassert>
#include <cstdio>

namespace gpuumd {

using namespace lsdma;  // NOLINT: register names read best bare, as in the manual

namespace {

std::string status_text(base::Value<PIO_STATUS> status) {
  char text[40];
  std::snprintf(text, sizeof(text), "LSDMA PIO_STATUS 0x%08x", status.raw());
  return text;
}

}  // namespace

base::Result<void> Lsdma::start() {
  registers_.write(base::Value<PIO_STATUS>(PIO_STATUS::kErrors));
  const auto status = registers_.read<PIO_STATUS>();
  if (!status.get<PIO_STATUS::IDLE>() || !status.get<PIO_STATUS::FIFO_EMPTY>())
    return base::fail(base::Errc::kDeviceError, status_text(status) + ", expected idle");
  return {};
}

void Lsdma::copy(base::McAddress from, base::McAddress to, std::uint32_t bytes, Done done) {
  assert(bytes > 0 && bytes <= kMaxBytes);
  commands_.push_back({from, to, bytes, std::move(done)});
  if (!running_) launch();
}

void Lsdma::launch() {
  running_ = true;
  started_ = reactor_.now();
  if (!overdue_) send(commands_.front());
}

void Lsdma::send(const Command& command) {
  const auto low = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
  const auto high = [](std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); };
  registers_.write(base::Value<PIO_SRC_ADDR_LO>(low(command.from.value())));
  registers_.write(base::Value<PIO_SRC_ADDR_HI>(high(command.from.value())));
  registers_.write(base::Value<PIO_DST_ADDR_LO>(low(command.to.value())));
  registers_.write(base::Value<PIO_DST_ADDR_HI>(high(command.to.value())));
  registers_.write(base::Value<PIO_CONTROL>(0));
  registers_.write(base::Value<PIO_COMMAND>().with<PIO_COMMAND::BYTE_COUNT>(command.bytes));
}

base::Result<void> Lsdma::outcome(base::Value<PIO_STATUS> status) {
  const auto errors = status.raw() & PIO_STATUS::kErrors;
  if (errors == 0) return {};
  registers_.write(base::Value<PIO_STATUS>(errors));
  const bool refused = status.get<PIO_STATUS::ERROR_WRRET_NACK_PRT>() ||
                       status.get<PIO_STATUS::ERROR_RDRET_NACK_PRT>() ||
                       status.get<PIO_STATUS::ERROR_WRRET_NACK_GEN_ERR>() ||
                       status.get<PIO_STATUS::ERROR_RDRET_NACK_GEN_ERR>();
  return base::fail(refused ? base::Errc::kRefused : base::Errc::kDeviceError, status_text(status));
}

bool Lsdma::poll() {
  bool any = false;
  if (running_) {
    const auto status = registers_.read<PIO_STATUS>();
    const bool lost = registers_.io().lost();
    const bool idle =
        !lost && status.get<PIO_STATUS::IDLE>() && status.get<PIO_STATUS::FIFO_EMPTY>();
    if (lost) {
      fail({base::Errc::kDeviceLost, 0, "LSDMA"});
    } else if (idle && overdue_) {
      (void)outcome(status);  // of nobody who waits any more
      overdue_ = false;
      send(commands_.front());
      any = true;
    } else if (idle) {
      finished_.emplace_back(std::move(commands_.front().done), outcome(status));
      commands_.pop_front();
      running_ = false;
      any = true;
    } else if (reactor_.now() - started_ > kCommandDeadline) {
      overdue_ = true;
      fail({base::Errc::kTimeout, 0, status_text(status) + " for 1 s"});
    }
  }
  if (!running_ && !commands_.empty()) {
    launch();
    any = true;
  }
  auto finished = std::exchange(finished_, {});
  for (auto& [done, result] : finished) done(std::move(result));
  return any || running_ || !finished.empty();
}

void Lsdma::fail(const base::Error& error) {
  running_ = false;
  for (auto& command : std::exchange(commands_, {}))
    finished_.emplace_back(std::move(command.done), std::unexpected(error));
}

}  // namespace gpuumd
