// What buffers take of the host: memory and descriptors of the daemon, in all and by user, so that
// no user can use up what the daemon needs to serve the others. Device thread.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "base/result.h"

namespace gpuumd {

struct HostUse {
  std::uint64_t bytes = 0;
  std::uint64_t descriptors = 0;
};

class HostQuota {
 public:
  // `all` of everybody, `user` of one uid.
  HostQuota(HostUse all, HostUse user) : all_(all), user_(user) {}

  // Three quarters of memory for all and half for one, the same of the descriptor limit, of which
  // one user gets 4096 at most.
  static HostQuota of_machine() {
    const auto memory = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                        static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    rlimit limit{1024, 1024};
    (void)::getrlimit(RLIMIT_NOFILE, &limit);
    const std::uint64_t files = std::min<std::uint64_t>(limit.rlim_cur, 1u << 30);
    return {{memory / 4 * 3, files / 4 * 3},
            {memory / 2, std::min<std::uint64_t>(files / 2, 4096)}};
  }

  // kNoMemory: more than all may have. kLimit: more than this user may have. Then nothing is taken.
  base::Result<void> take(uid_t uid, HostUse use) {
    auto& mine = users_[uid];
    if (!fits(total_, use, all_))
      return base::fail(base::Errc::kNoMemory,
                        "host memory or descriptors for " + std::to_string(use.bytes) + " bytes");
    if (!fits(mine, use, user_))
      return base::fail(base::Errc::kLimit, "host memory or descriptors of user " +
                                                std::to_string(uid) + ": " +
                                                std::to_string(mine.bytes) + " bytes and " +
                                                std::to_string(mine.descriptors) + " in use");
    add(total_, use);
    add(mine, use);
    return {};
  }
  void give_back(uid_t uid, HostUse use) {
    const auto it = users_.find(uid);
    if (it == users_.end()) return;
    for (auto* from : {&total_, &it->second}) {
      from->bytes -= use.bytes;
      from->descriptors -= use.descriptors;
    }
    if (it->second.bytes == 0 && it->second.descriptors == 0) users_.erase(it);
  }

 private:
  static bool fits(const HostUse& used, const HostUse& more, const HostUse& limit) {
    return more.bytes <= limit.bytes && used.bytes <= limit.bytes - more.bytes &&
           used.descriptors + more.descriptors <= limit.descriptors;
  }
  static void add(HostUse& to, const HostUse& use) {
    to.bytes += use.bytes;
    to.descriptors += use.descriptors;
  }

  HostUse all_, user_, total_;
  std::unordered_map<uid_t, HostUse> users_;
};

}  // namespace gpuumd
