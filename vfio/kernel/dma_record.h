// Exactly which ranges a DMA space has mapped: what the kernel is asked for is checked here first,
// so that its two interfaces fail alike. Pure but for its lock.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "base/address.h"
#include "base/result.h"
#include "vfio/pci_device.h"

namespace vfio {

// Any thread. A range is under way from reserve() to commit() or drop(), and from claim() to drop()
// or commit(); the kernel works meanwhile, and nobody else gets the range.
class DmaRecord {
 public:
  explicit DmaRecord(IovaLimits limits) : limits_(std::move(limits)) {}

  const IovaLimits& limits() const { return limits_; }

  // kInvalidArgument for what is not whole pages, kOutOfRange outside the usable ranges, kExists on
  // overlap, kLimit past max_mappings, kDeviceLost after stop().
  base::Result<void> reserve(std::uint64_t offset, std::uint64_t size, base::Iova at);
  // Takes exactly this range for unmapping. kNotFound unless it is mapped and not under way.
  base::Result<void> claim(base::Iova at, std::uint64_t size);
  void commit(base::Iova at);  // it is mapped (again)
  void drop(base::Iova at);    // it is not

  // Nothing is begun any more, and what is under way has ended.
  void stop();

  std::size_t count() const;

 private:
  struct Range {
    std::uint64_t size;
    bool under_way;
  };
  base::Result<void> check(std::uint64_t offset, std::uint64_t size, base::Iova at) const;

  const IovaLimits limits_;
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  std::map<std::uint64_t, Range> ranges_;  // by first address
  std::size_t under_way_ = 0;
  bool stopped_ = false;
};

// "[0x0, 0xfedfffff], [0xfef00000, 0xffffffffffff]".
std::string text_of(const std::vector<IovaRange>& ranges);

}  // namespace vfio
