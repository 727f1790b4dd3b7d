#!/usr/bin/env bash
# The kernel's userspace headers (linux-libc-dev) of trixie-backports, unpacked for this build alone
# into ${XDG_CACHE_HOME:-$HOME/.cache}/gpuumd-uapi: Debian 12's know no iommufd. What the running
# kernel has of it is found out at run time. Does nothing where the headers are there.
#
# Needs no root. Prints the directory that GPUUMD_UAPI_DIR takes by default.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/backports.sh"

cache=${XDG_CACHE_HOME:-$HOME/.cache}
target=$cache/gpuumd-uapi

there() { grep -qs IOMMU_IOAS_MAP_FILE "$1/usr/include/linux/iommufd.h"; }

if there "$target"; then
  echo "$target/usr/include"
  exit 0
fi
mkdir -p "$cache"
exec 9>"$cache/gpuumd-uapi.lock"
flock 9 # another run may be at it
if ! there "$target"; then
  work=$(mktemp -d "$cache/gpuumd-uapi.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  mkdir "$work/apt"
  if ! { backports_open "$work/apt" trixie-backports && backports_download linux-libc-dev/trixie-backports; }; then
    echo "uapi: no kernel headers: linux-libc-dev of trixie-backports cannot be had from this" \
      "machine's Debian mirror; or give cmake -DGPUUMD_UAPI_DIR=DIR with linux/iommufd.h of Linux 6.13 or newer" >&2
    cp -r "$work/apt"/*.log "$cache" 2>/dev/null || true
    exit 1
  fi
  dpkg -x "$work"/apt/archives/linux-libc-dev_*.deb "$work/root"
  there "$work/root" || {
    echo "uapi: linux-libc-dev of trixie-backports has no IOMMU_IOAS_MAP_FILE" >&2
    exit 1
  }
  rm -rf "$target"
  mv "$work/root" "$target"
fi
echo "$target/usr/include"
