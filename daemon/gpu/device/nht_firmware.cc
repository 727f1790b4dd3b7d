#include "daemon/gpu/device/nht_firmware.h"

#include <cstdio>
#include <utility>

namespace gpuumd {

using nht::Status;

std::string NhtFirmware::status_text(Status status) const {
  char text[40];
  std::snprintf(text, sizeof(text), "nHT STATUS 0x%02x", static_cast<unsigned>(status));
  return text;
}

void NhtFirmware::load(base::McAddress table, std::uint32_t data, Done done) {
  const auto status = registers_.read<nht::STATUS>().get<nht::STATUS::STATE>();
  if (status != Status::kPreInit && status != Status::kHalted)
    return done(base::fail(base::Errc::kDeviceError,
                           status_text(status) + ", expected 0xa0 or 0xa2 before a load"));
  const auto address = table.value();
  registers_.write(base::Value<nht::ADDR_HI>(static_cast<std::uint32_t>(address >> 32)));
  registers_.write(base::Value<nht::ADDR_LO>(static_cast<std::uint32_t>(address)));
  registers_.write(base::Value<nht::DATA>(data));
  run(nht::Command::kLoad, Status::kReady, std::move(done));
}

void NhtFirmware::halt(Done done) { run(nht::Command::kHalt, Status::kHalted, std::move(done)); }

void NhtFirmware::run(nht::Command command, Status goal, Done done) {
  if (done_) return done(base::fail(base::Errc::kBusy, "nHT mailbox"));
  registers_.write(base::Value<nht::CMD>().with<nht::CMD::COMMAND>(command));
  goal_ = goal;
  deadline_ = reactor_.now() + kDeadline;
  done_ = std::move(done);
  timer_ = reactor_.after(std::chrono::microseconds(50), "nHT mailbox", [this] { check(); });
}

void NhtFirmware::check() {
  const auto status = registers_.read<nht::STATUS>().get<nht::STATUS::STATE>();
  if (registers_.io().lost()) return finish(base::fail(base::Errc::kDeviceLost, "nHT mailbox"));
  if (status == goal_) return finish({});
  if (status == Status::kError || status == Status::kFatal)
    return finish(base::fail(base::Errc::kDeviceError, status_text(status)));
  if (reactor_.now() >= deadline_)
    return finish(
        base::fail(base::Errc::kTimeout, status_text(status) + ", expected " + status_text(goal_)));
  timer_ = reactor_.after(std::chrono::milliseconds(1), "nHT mailbox", [this] { check(); });
}

void NhtFirmware::finish(base::Result<void> result) {
  timer_ = {};
  std::exchange(done_, nullptr)(std::move(result));
}

}  // namespace gpuumd
