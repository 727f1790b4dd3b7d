#include "tools/gpusim/model/access_log.h"

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <memory>

namespace gpusim {

void AccessLog::add(const Access& access) {
  AccessTotals& total = totals_[Key{access.gpu, access.engine, access.kind, access.write}];
  ++total.accesses;
  if (access.outcome == Outcome::kOk)
    total.bytes += access.bytes;
  else if (access.outcome != Outcome::kRetry)
    ++total.failed;
  if (capacity_ == 0) {
    ++dropped_;
    return;
  }
  if (ring_.size() == capacity_) {
    ring_.pop_front();
    ++dropped_;
  }
  ring_.push_back(access);
}

std::vector<Access> AccessLog::find(unsigned gpu, std::string_view engine) const {
  std::vector<Access> found;
  for (const Access& access : ring_) {
    if (access.gpu == gpu && (engine.empty() || access.engine == engine)) found.push_back(access);
  }
  return found;
}

std::string_view to_string(AccessKind kind) {
  switch (kind) {
    case AccessKind::kLocal:
      return "local";
    case AccessKind::kRemote:
      return "remote";
    case AccessKind::kBus:
      return "bus";
  }
  return "?";
}

std::string_view to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return "ok";
    case Outcome::kRetry:
      return "retry";
    case Outcome::kFault:
      return "fault";
    case Outcome::kBusError:
      return "bus_error";
    case Outcome::kRefused:
      return "refused";
    case Outcome::kPeerLost:
      return "peer_lost";
  }
  return "?";
}

base::Result<void> AccessLog::write_file(const std::string& path) const {
  const auto close = [](std::FILE* file) { std::fclose(file); };
  std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "we"), close);
  if (!file) return base::fail(base::Errc::kSystem, "open " + path, errno);
  for (const Access& access : ring_) {
    std::fprintf(file.get(), "%" PRId64 " gpu%u %s %s %s 0x%" PRIx64 " %" PRIu64 " %s\n",
                 static_cast<std::int64_t>(access.time.count()), access.gpu, access.engine.c_str(),
                 to_string(access.kind).data(), access.write ? "write" : "read", access.address,
                 access.bytes, to_string(access.outcome).data());
  }
  for (const auto& [key, total] : totals_) {
    std::fprintf(file.get(),
                 "total gpu%u %s %s %s accesses %" PRIu64 " bytes %" PRIu64 " failed %" PRIu64 "\n",
                 key.gpu, key.engine.c_str(), to_string(key.kind).data(),
                 key.write ? "write" : "read", total.accesses, total.bytes, total.failed);
  }
  std::fprintf(file.get(), "dropped %" PRIu64 "\n", dropped_);
  if (std::fflush(file.get()) != 0 || std::ferror(file.get()) != 0)
    return base::fail(base::Errc::kSystem, "write " + path, errno);
  return {};
}

}  // namespace gpusim
