// The client's DMA mappings of one connection: IOVA ranges, with the memory behind those that came
// with a descriptor (docs/hardware/choices.md D58). Model thread only.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/address.h"
#include "base/fd.h"
#include "base/shared_memory.h"

namespace gpusim {

// A file that a client lends. A memfd that cannot shrink is mapped once, whole, however many
// DMA mappings lie in it (an IOMMU of a guest makes one for each page, and a process has a limit on
// mappings). Any other file may lose its pages under us, which a load would answer with SIGBUS:
// it is reached by pread and pwrite, which answer with an error.
class ClientFile {
 public:
  ClientFile(base::UniqueFd fd, base::Mapping mapping)
      : fd_(std::move(fd)), mapping_(std::move(mapping)) {}

  // Whether the bytes below `end` can be reached: the file may have grown since it was mapped.
  bool covers(std::uint64_t end) const { return !mapping_ || end <= mapping_.size(); }
  std::byte* mapped(std::uint64_t offset) const {
    return mapping_ ? mapping_.data() + offset : nullptr;
  }
  bool read(std::uint64_t offset, std::span<std::byte> to) const;
  bool write(std::uint64_t offset, std::span<const std::byte> from) const;

 private:
  base::UniqueFd fd_;
  base::Mapping mapping_;
};

class DmaMap {
 public:
  struct Range {
    std::uint64_t size = 0;
    bool readable = false;
    bool writable = false;
    std::shared_ptr<ClientFile> file;  // null: by message only
    std::uint64_t offset = 0;          // in the file, of the range's first byte
  };

  // All three answer with an errno or 0. `fd` may be empty. EINVAL: size 0, not page-aligned, past
  // the end of the space or of the file; EEXIST: over a live byte; EACCES: the descriptor does not
  // allow it; ENOSPC: too many.
  int map(std::uint64_t at, std::uint64_t size, bool readable, bool writable, base::UniqueFd fd,
          std::uint64_t offset);
  // Whole mappings inside the range go; a range that cuts one: EINVAL, and nothing goes; none: 0.
  int unmap(std::uint64_t at, std::uint64_t size);
  void clear();

  // The longest piece [at, at + n), n <= size, that one mapping covers (`range` set; `inside` is
  // at's distance from its start), or that none covers (`range` null).
  struct Piece {
    const Range* range = nullptr;
    std::uint64_t inside = 0;
    std::uint64_t size = 0;
  };
  Piece piece(std::uint64_t at, std::uint64_t size) const;

  // The memory of the whole of [at, at + size), if one mapping covers it, allows it and is mapped.
  std::byte* direct(std::uint64_t at, std::uint64_t size, bool write) const;

  std::size_t size() const { return ranges_.size(); }
  // What is mapped, neighbours joined: first address and size, in order.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> covered() const;

 private:
  using FileKey = std::tuple<dev_t, ino_t, bool>;  // with the right to write

  std::optional<int> open_file(base::UniqueFd fd, std::uint64_t end, bool writable,
                               std::shared_ptr<ClientFile>& file);

  std::map<std::uint64_t, Range> ranges_;  // by first address
  std::map<FileKey, std::weak_ptr<ClientFile>> files_;
};

}  // namespace gpusim
