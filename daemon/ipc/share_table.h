// Buffer descriptors: what `share` hands out is one end of a socketpair whose other end the daemon
// holds, so that the last close() of it anywhere drops the reference. Nothing can be sent through
// it: the daemon's end is shut for reading, or a client could queue descriptors there whose closing
// blocks.
//
// Reactor thread, unless marked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/address.h"
#include "base/fd.h"
#include "base/result.h"
#include "daemon/reactor/reactor.h"

namespace gpuumd {

// Names a pair: the kernel's cookie of the client's end, which is never used twice.
using ShareKey = base::Id<struct ShareKeyTag, std::uint64_t>;

// The key of a descriptor made by a ShareTable of this process, or nothing. Only calls that cannot
// block whatever the descriptor is. Any thread.
std::optional<ShareKey> identify_share(int descriptor);

class ShareTable {
 public:
  // `closed` is called once for a pair whose client end is closed everywhere; it is forgotten
  // before.
  static base::Result<std::unique_ptr<ShareTable>> create(
      Reactor& reactor, std::move_only_function<void(ShareKey)> closed);
  ShareTable(const ShareTable&) = delete;
  ShareTable& operator=(const ShareTable&) = delete;

  // A new pair: its key and the end for the client. kSystem without descriptors.
  base::Result<std::pair<ShareKey, base::UniqueFd>> make();
  // Closes the daemon's end; `closed` is not called for it.
  void drop(ShareKey key);
  bool contains(ShareKey key) const { return pairs_.contains(key.value()); }
  std::size_t size() const { return pairs_.size(); }

 private:
  ShareTable(base::UniqueFd epoll, std::move_only_function<void(ShareKey)> closed)
      : epoll_(std::move(epoll)), closed_(std::move(closed)) {}
  void hang_ups();

  base::UniqueFd epoll_;  // all pairs, for hang-up only; readable while there is one
  std::move_only_function<void(ShareKey)> closed_;
  std::unordered_map<std::uint64_t, base::UniqueFd> pairs_;  // key -> our end
  Registration watch_;
};

}  // namespace gpuumd
