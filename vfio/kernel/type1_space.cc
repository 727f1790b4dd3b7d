#include "vfio/kernel/type1_space.h"

#include <linux/vfio.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "vfio/kernel/kernel_info.h"
#include "vfio/kernel/open_node.h"

namespace vfio {
namespace {

constexpr std::size_t kUsualInfo = 1024;
constexpr std::size_t kMaxInfo = 1024 * 1024;

// What kernels before 5.10 do not say: the default of vfio_iommu_type1.dma_entry_limit.
constexpr std::uint64_t kUsualMappings = 65535;

base::Result<void> check_container(int container, int iommu) {
  const int version = call_kernel(container, VFIO_GET_API_VERSION, nullptr);
  if (version != VFIO_API_VERSION)
    return base::fail(base::Errc::kUnsupported, "the kernel's VFIO has another interface");
  if (call_kernel(container, VFIO_CHECK_EXTENSION, iommu) > 0) return {};
  if (iommu == VFIO_NOIOMMU_IOMMU)
    return base::fail(base::Errc::kUnsupported,
                      "the kernel has no mode without an IOMMU (enable_unsafe_noiommu_mode)");
  return base::fail(base::Errc::kUnsupported,
                    "no IOMMU for VFIO: load vfio_iommu_type1, and switch the IOMMU on (firmware; "
                    "intel_iommu=on)");
}

base::Result<void> check_viable(int group) {
  vfio_group_status status{};
  status.argsz = sizeof(status);
  if (const int done = call_kernel(group, VFIO_GROUP_GET_STATUS, &status); done < 0)
    return base::fail(base::Errc::kSystem, "VFIO_GROUP_GET_STATUS", -done);
  if ((status.flags & VFIO_GROUP_FLAGS_VIABLE) == 0)
    return base::fail(base::Errc::kPermission,
                      "its IOMMU group is not viable: a driver of the kernel has another device of "
                      "the group (gpuctl devices says which; gpuctl bind)");
  if ((status.flags & VFIO_GROUP_FLAGS_CONTAINER_SET) != 0)
    return base::fail(base::Errc::kBusy, "its IOMMU group is in use by another process");
  return {};
}

base::Error container_error(int error, GroupKind kind) {
  switch (error) {
    case EBUSY:
    case EINVAL:  // it has a container, since its status was read
      return {base::Errc::kBusy, error,
              "its IOMMU group is in use by another process (gpuctl devices says which)"};
    case EPERM:
      if (kind == GroupKind::kNoIommu)
        return {base::Errc::kPermission, error,
                "a device without an IOMMU takes CAP_SYS_RAWIO: run as root"};
      return {base::Errc::kBusy, error,
              "a driver of the kernel, or another process, has DMA of its IOMMU group (gpuctl "
              "devices says who else is in it)"};
    default:
      return {base::Errc::kSystem, error, "VFIO_GROUP_SET_CONTAINER"};
  }
}

base::Error iommu_error(int error) {
  switch (error) {
    case EPERM:
      return {base::Errc::kUnsupported, error,
              "the kernel does not trust this machine's interrupts: switch interrupt remapping of "
              "the IOMMU on (firmware, intremap=on), or load vfio_iommu_type1 with "
              "allow_unsafe_interrupts=1"};
    case ENODEV:
      return {base::Errc::kUnsupported, error,
              "the kernel has no IOMMU for the group: load vfio_iommu_type1, and see gpuctl "
              "doctor"};
    case EBUSY:
      return {base::Errc::kBusy, error,
              "another process, or a driver of the kernel, has the IOMMU of its group (gpuctl "
              "devices says who else is in it)"};
    case ENOMEM:
      return {base::Errc::kNoMemory, error, "the group's address space (VFIO_SET_IOMMU)"};
    case ENOSPC:
      return {base::Errc::kNoSpace, error,
              "the IOMMU has no address space left: end other users of VFIO"};
    default:
      return {base::Errc::kSystem, error,
              "the IOMMU does not take the group (VFIO_SET_IOMMU): the kernel's log says why "
              "(dmesg), and gpuctl doctor what the machine lacks"};
  }
}

base::Error device_error(int error, GroupKind kind) {
  switch (error) {
    case EBUSY:
      return {base::Errc::kBusy, error, "somebody else has the device open"};
    case ENODEV:
      return {base::Errc::kNotFound, error, "the device goes away, or is not bound to vfio-pci"};
    case EACCES:
      return token_error();
    case EPERM:
      return {base::Errc::kPermission, error,
              kind == GroupKind::kNoIommu
                  ? "a device without an IOMMU takes CAP_SYS_RAWIO: run as root"
                  : "the kernel does not give the device to this process "
                    "(VFIO_GROUP_GET_DEVICE_FD): run as root, and see the kernel's log"};
    default:
      return {base::Errc::kSystem, error, "VFIO_GROUP_GET_DEVICE_FD"};
  }
}

base::Result<IovaLimits> read_limits(int container) {
  for (std::size_t room = kUsualInfo;;) {
    std::vector<std::byte> reply(room);
    base::store(reply, 0, static_cast<std::uint32_t>(room));
    if (const int done = call_kernel(container, VFIO_IOMMU_GET_INFO, reply.data()); done < 0)
      return base::fail(base::Errc::kSystem, "VFIO_IOMMU_GET_INFO", -done);
    if (const std::size_t needs = needs_more(reply); needs != 0) {
      if (room != kUsualInfo || needs > kMaxInfo)
        return base::fail(base::Errc::kProtocol, "VFIO_IOMMU_GET_INFO does not end");
      room = needs;
      continue;
    }
    const auto info = parse_type1_info(reply);
    if (!info) return base::fail_within("VFIO_IOMMU_GET_INFO", info.error());
    IovaLimits limits;
    limits.usable = info->ranges;
    limits.page_sizes = info->page_sizes == 0 ? base::kPageSize : info->page_sizes;
    limits.max_mappings = info->mappings_left ? *info->mappings_left : kUsualMappings;
    return limits;
  }
}

IovaLimits no_limits() {
  IovaLimits limits;
  limits.max_mappings = 0;
  return limits;
}

}  // namespace

base::Result<Type1Space::Opened> Type1Space::open(const std::string& container_node,
                                                  const std::string& group_node,
                                                  const std::string& address, GroupKind kind) {
  auto container = open_node(container_node, NodeOf::kModule);
  if (!container) return std::unexpected(container.error());
  const int iommu = kind == GroupKind::kIommu ? VFIO_TYPE1v2_IOMMU : VFIO_NOIOMMU_IOMMU;
  if (auto ok = check_container(container->get(), iommu); !ok) return std::unexpected(ok.error());
  auto group = open_node(group_node, NodeOf::kDevice);
  if (!group) return std::unexpected(group.error());
  if (auto ok = check_viable(group->get()); !ok) return std::unexpected(ok.error());

  int container_fd = container->get();
  if (const int done = call_kernel(group->get(), VFIO_GROUP_SET_CONTAINER, &container_fd); done < 0)
    return std::unexpected(container_error(-done, kind));
  if (const int done = call_kernel(container->get(), VFIO_SET_IOMMU, iommu); done < 0)
    return std::unexpected(iommu_error(-done));
  std::string name = address;
  const int device = call_kernel(group->get(), VFIO_GROUP_GET_DEVICE_FD, name.data());
  if (device < 0) return std::unexpected(device_error(-device, kind));
  base::UniqueFd owned(device);
  // After the device is open: then the group's reserved ranges are certainly left out.
  auto limits = kind == GroupKind::kIommu ? read_limits(container->get()) : no_limits();
  if (!limits) return std::unexpected(limits.error());
  std::unique_ptr<DmaSpace> space(
      new Type1Space(std::move(*container), std::move(*group), std::move(*limits), kind));
  return Opened{std::move(owned), std::move(space)};
}

base::Result<void> Type1Space::usable() const {
  if (kind_ == GroupKind::kIommu) return {};
  return base::fail(base::Errc::kUnsupported,
                    "DMA without an IOMMU: there is nothing that would translate an IOVA of ours, "
                    "so this device serves registers and interrupts alone");
}

base::Result<void> Type1Space::kernel_map(int fd, std::uint64_t offset, std::uint64_t size,
                                          base::Iova at, Rights rights) {
  const auto memory = AddressOf::range(fd, offset, size, rights);
  if (!memory) return std::unexpected(memory.error());
  vfio_iommu_type1_dma_map request{};
  request.argsz = sizeof(request);
  request.flags = (may(rights, Rights::kRead) ? VFIO_DMA_MAP_FLAG_READ : 0u) |
                  (may(rights, Rights::kWrite) ? VFIO_DMA_MAP_FLAG_WRITE : 0u);
  request.vaddr = memory->value();
  request.iova = at.value();
  request.size = size;
  const int done = call_kernel(container_.get(), VFIO_IOMMU_MAP_DMA, &request);
  if (done < 0) return std::unexpected(map_error(-done, size));
  return {};
}

base::Result<void> Type1Space::kernel_unmap(base::Iova at, std::uint64_t size) {
  vfio_iommu_type1_dma_unmap request{};
  request.argsz = sizeof(request);
  request.iova = at.value();
  request.size = size;
  const int done = call_kernel(container_.get(), VFIO_IOMMU_UNMAP_DMA, &request);
  if (done < 0) return base::fail(base::Errc::kSystem, "VFIO_IOMMU_UNMAP_DMA", -done);
  if (request.size != size)
    return base::fail(base::Errc::kProtocol, "the kernel unmapped another range than asked for");
  return {};
}

void Type1Space::kernel_close() {
  // The group first: it keeps the container's IOMMU, and with it all that is mapped.
  group_.reset();
  container_.reset();
}

}  // namespace vfio
