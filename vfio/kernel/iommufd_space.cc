#include "vfio/kernel/iommufd_space.h"

#include <fcntl.h>
#include <linux/iommufd.h>
#include <linux/vfio.h>
#include <sys/mman.h>

#include <bit>
#include <cerrno>
#include <vector>

#include "vfio/kernel/open_node.h"

namespace vfio {
namespace {

constexpr std::uint32_t kMaxRanges = 4096;

base::Error bind_error(int error) {
  switch (error) {
    case EINVAL:
      return {base::Errc::kUnsupported, error,
              "iommufd does not take the device: its IOMMU does not keep DMA coherent with the "
              "processor's caches, or somebody else has it open"};
    case EBUSY:
      return {base::Errc::kBusy, error,
              "somebody else has the device, or another one of its IOMMU group, open (gpuctl "
              "devices says who)"};
    case EPERM:
      return {base::Errc::kUnsupported, error,
              "the kernel does not trust this machine's interrupts: switch interrupt remapping of "
              "the IOMMU on (firmware, intremap=on), or load iommufd with "
              "allow_unsafe_interrupts=1"};
    case ENODEV:
      return {base::Errc::kNotFound, error, "the device goes away"};
    case EACCES:  // Linux 6.17
      return token_error();
    default:
      return {base::Errc::kSystem, error, "VFIO_DEVICE_BIND_IOMMUFD"};
  }
}

base::Error attach_error(int error) {
  switch (error) {
    case EINVAL:
    case ENODEV:
    case ENOTTY:
    case EOPNOTSUPP:
      return {base::Errc::kUnsupported, error,
              "the device's IOMMU gives it no address space (VFIO_DEVICE_ATTACH_IOMMUFD_PT)"};
    case EBUSY:
      return {base::Errc::kBusy, error, "another device of its IOMMU group has an address space"};
    case ENOMEM:
      return {base::Errc::kNoMemory, error, "the device's address space"};
    default:
      return {base::Errc::kSystem, error, "VFIO_DEVICE_ATTACH_IOMMUFD_PT"};
  }
}

base::Result<IovaLimits> read_limits(int iommufd, std::uint32_t ioas) {
  std::vector<iommu_iova_range> ranges(64);
  iommu_ioas_iova_ranges request{};
  for (;;) {
    request = {};
    request.size = sizeof(request);
    request.ioas_id = ioas;
    request.num_iovas = static_cast<std::uint32_t>(ranges.size());
    request.allowed_iovas = reinterpret_cast<std::uintptr_t>(ranges.data());
    const int done = call_kernel(iommufd, IOMMU_IOAS_IOVA_RANGES, &request);
    if (done == -EMSGSIZE && request.num_iovas > ranges.size() && request.num_iovas <= kMaxRanges) {
      ranges.resize(request.num_iovas);
      continue;
    }
    if (done < 0) return base::fail(base::Errc::kSystem, "IOMMU_IOAS_IOVA_RANGES", -done);
    break;
  }
  if (request.num_iovas > ranges.size())
    return base::fail(base::Errc::kProtocol, "more IOVA ranges than there was room for");
  ranges.resize(request.num_iovas);
  IovaLimits limits;
  for (const auto& range : ranges) {
    if (range.start > range.last)
      return base::fail(base::Errc::kProtocol, "IOVA range that ends before it begins");
    limits.usable.push_back({base::Iova(range.start), base::Iova(range.last)});
  }
  if (!std::has_single_bit(request.out_iova_alignment))
    return base::fail(base::Errc::kProtocol, "alignment of IOVAs is no power of two");
  // The kernel says the smallest page alone; it uses larger ones where memory and IOVA allow.
  limits.page_sizes = std::max<std::uint64_t>(request.out_iova_alignment, base::kPageSize);
  limits.max_mappings = UINT64_MAX;
  return limits;
}

}  // namespace

base::Result<IommufdSpace::Opened> IommufdSpace::open(const std::string& iommu_node,
                                                      const std::string& device_node, MapBy by) {
  auto iommufd = open_node(iommu_node, NodeOf::kModule);
  if (!iommufd) return std::unexpected(iommufd.error());
  auto device = open_node(device_node, NodeOf::kDevice);
  if (!device) return std::unexpected(device.error());

  vfio_device_bind_iommufd bind{};
  bind.argsz = sizeof(bind);
  bind.iommufd = iommufd->get();
  if (const int done = call_kernel(device->get(), VFIO_DEVICE_BIND_IOMMUFD, &bind); done < 0)
    return std::unexpected(bind_error(-done));

  iommu_ioas_alloc alloc{};
  alloc.size = sizeof(alloc);
  if (const int done = call_kernel(iommufd->get(), IOMMU_IOAS_ALLOC, &alloc); done < 0)
    return base::fail(base::Errc::kSystem, "IOMMU_IOAS_ALLOC", -done);
  vfio_device_attach_iommufd_pt attach{};
  attach.argsz = sizeof(attach);
  attach.pt_id = alloc.out_ioas_id;
  if (const int done = call_kernel(device->get(), VFIO_DEVICE_ATTACH_IOMMUFD_PT, &attach); done < 0)
    return std::unexpected(attach_error(-done));
  // After attaching: only now are the IOMMU's limits among them.
  auto limits = read_limits(iommufd->get(), alloc.out_ioas_id);
  if (!limits) return std::unexpected(limits.error());
  std::unique_ptr<DmaSpace> space(
      new IommufdSpace(std::move(*iommufd), alloc.out_ioas_id, std::move(*limits), by));
  return Opened{std::move(*device), std::move(space)};
}

base::Result<void> IommufdSpace::kernel_map(int fd, std::uint64_t offset, std::uint64_t size,
                                            base::Iova at, Rights rights) {
  const std::uint32_t flags = IOMMU_IOAS_MAP_FIXED_IOVA |
                              (may(rights, Rights::kRead) ? IOMMU_IOAS_MAP_READABLE : 0) |
                              (may(rights, Rights::kWrite) ? IOMMU_IOAS_MAP_WRITEABLE : 0);
  const auto memory = AddressOf::range(fd, offset, size, rights);
  if (!memory) return std::unexpected(memory.error());
  if (by_file_.load(std::memory_order_relaxed)) {
    // By file the kernel pins pages as they are. One that fallocate() made and nobody has touched
    // is not cleared yet: the device would see what others left there, and the processor's first
    // access would clear what the device wrote.
    if (::madvise(reinterpret_cast<void*>(memory->value()), size, MADV_POPULATE_READ) != 0)
      return std::unexpected(map_error(errno, size));
    iommu_ioas_map_file request{};
    request.size = sizeof(request);
    request.flags = flags;
    request.ioas_id = ioas_;
    request.fd = fd;
    request.start = offset;
    request.length = size;
    request.iova = at.value();
    const int done = call_kernel(iommufd_.get(), IOMMU_IOAS_MAP_FILE, &request);
    if (done >= 0) return {};
    if (done != -ENOTTY && done != -EOPNOTSUPP) return std::unexpected(map_error(-done, size));
    by_file_.store(false, std::memory_order_relaxed);  // a kernel before 6.13
  }
  iommu_ioas_map request{};
  request.size = sizeof(request);
  request.flags = flags;
  request.ioas_id = ioas_;
  request.user_va = memory->value();
  request.length = size;
  request.iova = at.value();
  const int done = call_kernel(iommufd_.get(), IOMMU_IOAS_MAP, &request);
  if (done < 0) return std::unexpected(map_error(-done, size));
  return {};
}

base::Result<void> IommufdSpace::kernel_unmap(base::Iova at, std::uint64_t size) {
  iommu_ioas_unmap request{};
  request.size = sizeof(request);
  request.ioas_id = ioas_;
  request.iova = at.value();
  request.length = size;
  const int done = call_kernel(iommufd_.get(), IOMMU_IOAS_UNMAP, &request);
  if (done < 0) return base::fail(base::Errc::kSystem, "IOMMU_IOAS_UNMAP", -done);
  if (request.length != size)
    return base::fail(base::Errc::kProtocol, "the kernel unmapped another range than asked for");
  return {};
}

}  // namespace vfio
