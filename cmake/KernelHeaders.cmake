# The kernel's userspace headers with iommufd (Linux 6.13 or newer). Link the target `kernel_headers`.
#
# GPUUMD_UAPI_DIR: the directory with linux/iommufd.h. By default the system's own when they are new
# enough (then it is empty), else what tools/uapi.sh has unpacked. What the running kernel has of
# what they define is found out at run time.
function(gpuumd_has_iommufd directory result)
  set(lines)
  if(EXISTS "${directory}/linux/iommufd.h")
    file(STRINGS "${directory}/linux/iommufd.h" lines REGEX IOMMU_IOAS_MAP_FILE)
  endif()
  if(lines)
    set(${result} TRUE PARENT_SCOPE)
  else()
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

function(gpuumd_find_kernel_headers result)
  set(cache "$ENV{XDG_CACHE_HOME}")
  if(NOT cache)
    set(cache "$ENV{HOME}/.cache")
  endif()
  foreach(directory "/usr/include" "${cache}/gpuumd-uapi/usr/include")
    gpuumd_has_iommufd("${directory}" has)
    if(has)
      set(${result} "${directory}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${result} "NOTFOUND" PARENT_SCOPE)
endfunction()

set(GPUUMD_UAPI_DIR "" CACHE PATH "kernel headers with iommufd's IOMMU_IOAS_MAP_FILE; empty: to be found")
set(uapi "${GPUUMD_UAPI_DIR}")
if(NOT uapi)
  gpuumd_find_kernel_headers(uapi)
endif()
gpuumd_has_iommufd("${uapi}" has)
if(NOT has)
  message(FATAL_ERROR "No kernel headers with IOMMU_IOAS_MAP_FILE (linux/iommufd.h of Linux 6.13 or newer): "
    "run tools/uapi.sh, which gets Debian's linux-libc-dev of trixie-backports, "
    "or give -DGPUUMD_UAPI_DIR=DIR (it is \"${GPUUMD_UAPI_DIR}\")")
endif()

add_library(kernel_headers INTERFACE)
if(NOT uapi STREQUAL "/usr/include")
  target_include_directories(kernel_headers SYSTEM INTERFACE "${uapi}")
endif()
