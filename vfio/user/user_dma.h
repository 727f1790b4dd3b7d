// The memory that the server may reach, as this client mapped it: what an IOMMU is to a real
// device. Serves the server's DMA_READ and DMA_WRITE and refuses everything that is not mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <tuple>
#include <vector>

#include "base/address.h"
#include "base/fd.h"
#include "base/result.h"
#include "vfio/pci_device.h"

namespace vfio {

// Any thread. A mapping exists from reserve() to drop(), i.e. a little longer than the server
// knows of it, since the server may use it before we have its reply.
class DmaTable {
 public:
  // A range of `fd` at an IOVA. kExists on overlap, kLimit past `max_mappings`, kOutOfRange when
  // the descriptor is shorter. Keeps its own duplicate, one for each file and access mode.
  base::Result<void> reserve(int fd, std::uint64_t offset, std::uint64_t size, base::Iova at,
                             Rights rights, std::uint64_t max_mappings);
  // The server has agreed: from now on it may be unmapped.
  void commit(base::Iova at);
  // Claims exactly this mapping for unmapping: kNotFound unless it exists and nobody else does.
  base::Result<void> claim(base::Iova at, std::uint64_t size);
  void drop(base::Iova at);
  // Drops all that nobody is about to commit or drop.
  void clear();

  // Copies between the mapped memory and a buffer; a range may span neighbouring mappings. 0, or
  // an errno: EINVAL for a range that wraps, EFAULT for a byte that is not mapped (or whose memory
  // is gone), EACCES for one without the right. Reads and writes through the descriptor, so that
  // memory that somebody punches or truncates gives an errno and no signal.
  int read(base::Iova at, std::span<std::byte> to);
  int write(base::Iova at, std::span<const std::byte> from);

  struct Range {
    base::Iova at;
    std::uint64_t size;
  };
  std::vector<Range> all() const;

 private:
  using FileKey = std::tuple<std::uint64_t, std::uint64_t, int>;  // device, inode, access mode
  struct Mapping {
    std::shared_ptr<base::UniqueFd> file;
    FileKey key;
    std::uint64_t offset;
    std::uint64_t size;
    Rights rights;
    bool settled;  // committed and not claimed
  };
  using Table = std::map<std::uint64_t, Mapping>;

  base::Result<std::shared_ptr<base::UniqueFd>> file_of(int fd, const FileKey& key);
  // Checks all of the range, then calls `copy(mapping, file offset, offset in range, bytes)` for
  // each piece.
  template <class Copy>
  int for_each_piece(base::Iova at, std::uint64_t size, Rights right, Copy copy);

  mutable std::mutex mutex_;
  Table table_;  // by first address
  std::map<FileKey, std::weak_ptr<base::UniqueFd>> files_;
};

}  // namespace vfio
