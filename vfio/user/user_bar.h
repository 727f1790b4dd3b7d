// A BAR behind a vfio-user connection: mapped where the server gave memory, trapped elsewhere.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "vfio/bar_memory.h"
#include "vfio/pci_device.h"
#include "vfio/user/user_region.h"

namespace vfio {

// Trapped accesses, as the device does them.
class RegionIo {
 public:
  virtual ~RegionIo() = default;
  // A REGION_READ or REGION_WRITE of at most 8 bytes.
  virtual base::Result<void> region_read(std::uint32_t region, std::uint64_t offset,
                                         std::span<std::byte> to) = 0;
  virtual base::Result<void> region_write(std::uint32_t region, std::uint64_t offset,
                                          std::span<const std::byte> from) = 0;
  // The same without waiting for an answer.
  virtual void region_post(std::uint32_t region, std::uint64_t offset,
                           std::span<const std::byte> from) = 0;
  // Before an access to mapped memory: waits until what was posted is done, since PCIe keeps the
  // writes of one requester in order, and lets no read pass them. False when the device is lost.
  virtual bool settle() = 0;
};

// Tells a sleeping model that a doorbell was stored ("gpuumd.wake", docs/vfio-user.md). Any thread.
class DoorbellWake {
 public:
  // `sleeping` is 1 while the server sleeps. Both must outlive this.
  DoorbellWake(std::uint32_t* sleeping, int eventfd) : sleeping_(sleeping), eventfd_(eventfd) {}
  // After the store of a doorbell.
  void stored() const;

 private:
  std::uint32_t* sleeping_;
  int eventfd_;
};

class UserBar final : public Bar {
 public:
  // Maps what `region` allows. A descriptor that is not sealed against shrinking, or that cannot be
  // mapped for reading and writing, is not mapped: then all is trapped. kProtocol when it is
  // shorter than it was said to be. `io` and `wake` (null: none) must outlive the BAR.
  static base::Result<std::unique_ptr<UserBar>> create(RegionIo& io, std::uint32_t index,
                                                       const Region& region,
                                                       const base::UniqueFd& fd,
                                                       const DoorbellWake* wake);

  std::uint64_t size() const override { return size_; }
  std::span<const MappedArea> mapped() const override;
  const std::shared_ptr<BarMemory>& memory() const { return memory_; }  // null: all is trapped
  std::uint32_t read32(std::uint64_t offset) override;
  std::uint64_t read64(std::uint64_t offset) override;
  void write32(std::uint64_t offset, std::uint32_t value) override;
  void write64(std::uint64_t offset, std::uint64_t value) override;
  void ring_doorbell32(std::uint64_t offset, std::uint32_t value) override;
  void ring_doorbell64(std::uint64_t offset, std::uint64_t value) override;
  base::Result<void> read(std::uint64_t offset, std::span<std::byte> to) override;
  base::Result<void> write(std::uint64_t offset, std::span<const std::byte> from) override;

 private:
  UserBar(RegionIo& io, std::uint32_t index, std::uint64_t size, const DoorbellWake* wake)
      : io_(io), index_(index), size_(size), wake_(wake) {}

  base::Result<void> map(const Region& region, const base::UniqueFd& fd);
  std::byte* mapped_at(std::uint64_t offset) const;  // null where trapped
  template <class Word>
  Word read_word(std::uint64_t offset);
  template <class Word>
  void write_word(std::uint64_t offset, Word value);
  template <class Word>
  void ring(std::uint64_t offset, Word value);

  RegionIo& io_;
  const std::uint32_t index_;
  const std::uint64_t size_;
  const DoorbellWake* const wake_;
  std::shared_ptr<BarMemory> memory_;
};

}  // namespace vfio
