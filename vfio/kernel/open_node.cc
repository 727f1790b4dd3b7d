#include "vfio/kernel/open_node.h"

#include <fcntl.h>

#include <cerrno>

namespace vfio {

base::Result<base::UniqueFd> open_node(const std::string& path, NodeOf whose) {
  base::UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd) return fd;
  const int error = errno;
  switch (error) {
    case ENOENT:
    case ENODEV:
    case ENXIO:
    case ENOTDIR:
      return base::fail(base::Errc::kNotFound,
                        path + (whose == NodeOf::kModule
                                    ? " is not there: load the modules (modprobe vfio-pci iommufd)"
                                    : " is not there: the device has been unbound from vfio-pci or "
                                      "unplugged (gpuctl devices says what has it)"),
                        error);
    case EACCES:
    case EPERM:
      return base::fail(base::Errc::kPermission,
                        path +
                            " may not be opened by this user: run as root, or give the node to "
                            "the user (docs/vfio.md)",
                        error);
    case EBUSY:
      return base::fail(base::Errc::kBusy,
                        path + " is open in another process (gpuctl devices says which)", error);
    default:
      return base::fail(base::Errc::kSystem, "open " + path, error);
  }
}

base::Error token_error() {
  return {base::Errc::kPermission, EACCES,
          "the kernel wants a VF token for it, and gpuumd has none: its physical function is bound "
          "to vfio-pci (or, of a physical function, a virtual one is in use); give the physical "
          "function to its own driver or to pci-pf-stub"};
}

}  // namespace vfio
