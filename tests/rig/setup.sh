#!/usr/bin/env bash
# Makes what the guest tests need, from Debian packages alone, in ${XDG_CACHE_HOME:-$HOME/.cache}/gpuumd-rig:
#
#   qemu/              QEMU of trixie-backports (it has vfio-user-pci), unpacked; bin/qemu runs it with the
#                      loader and libraries that came with it
#   kernel-V-SUM/      a guest kernel built from linux-source-V with kernel.config, whose checksum SUM begins
#   kernel-debian/     Debian's own cloud kernel with its VFIO modules: the group interface alone
#
# What is there is not made again. Each part appears whole or not at all, and two runs at once wait for
# each other. Needs root for packages of this machine that are missing (packages.txt).
#
#   tests/rig/setup.sh [--kernel 7.3|6.12] [--no-kernel-build] [--jobs N]
#
# Prints the paths of the parts, as "name=path" lines, when all is ready; what it does goes to stderr.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../tools/backports.sh"

# All of it is read before any of it runs: it takes long, and the file may change meanwhile.
{
version=7.3
jobs=$(nproc)
while [ $# -gt 0 ]; do
  case $1 in
  --kernel) version=${2:?--kernel needs a version}; shift ;;
  --no-kernel-build) version=debian ;;
  --jobs) jobs=${2:?--jobs needs a number}; shift ;;
  *) echo "usage: setup.sh [--kernel VERSION] [--no-kernel-build] [--jobs N]" >&2; exit 2 ;;
  esac
  shift
done

cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpuumd-rig
if [ "$version" = debian ]; then
  kernel=$cache/kernel-debian
else
  kernel=$cache/kernel-$version-$(sha256sum "$here/kernel.config" | cut -c1-12)
fi
qemu=$cache/qemu

start=$SECONDS
say() { echo "rig: $((SECONDS - start)) s: $*" >&2; }
fail() { echo "rig: $*" >&2; exit 1; }

ready() { [ -x "$qemu/bin/qemu" ] && [ -e "$kernel/bzImage" ]; }
report() { printf 'qemu=%s\nkernel=%s\n' "$qemu/bin/qemu" "$kernel"; }

# What is there is whole, so it takes no lock to use it.
if ready; then
  report
  exit 0
fi
mkdir -p "$cache"
exec 9>"$cache/lock"
flock -n 9 || { say "waits for another set-up"; flock 9; }
if ready; then
  report
  exit 0
fi

# Left by a run that was killed; nobody else is here.
rm -rf "$cache"/making.*
work=$(mktemp -d "$cache/making.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

"$here/../../tools/setup.sh" "$here/packages.txt" >"$work/setup.log" 2>&1 ||
  { cat "$work/setup.log" >&2; fail "packages of this machine are missing"; }
mkdir "$work/apt"
backports_open "$work/apt" trixie trixie-backports || fail "no package lists of trixie"
say "package lists"

make_qemu() {
  backports_download_all qemu-system-x86
  local package root=$work/qemu/root
  mkdir -p "$root" "$work/qemu/bin"
  for package in "$work"/apt/archives/*.deb; do dpkg -x "$package" "$root"; done
  rm -f "$work"/apt/archives/*.deb
  cat >"$work/qemu/bin/qemu" <<'WRAPPER'
#!/bin/sh
# QEMU of another Debian than this machine's, with that Debian's loader and libraries.
root=$(cd "$(dirname "$0")/../root" && pwd)
libraries=$root/usr/lib/x86_64-linux-gnu
export QEMU_MODULE_DIR="$libraries/qemu"
exec "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" "$root/usr/bin/qemu-system-x86_64" \
  -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" "$@"
WRAPPER
  chmod 755 "$work/qemu/bin/qemu"
  "$work/qemu/bin/qemu" -machine q35 -device vfio-user-pci,help >/dev/null || fail "this QEMU has no vfio-user-pci"
  mv -T "$work/qemu" "$qemu"
  say "$("$qemu/bin/qemu" --version | head -n 1)"
}

# Debian's kernel has VFIO as modules: those of the group interface, in the order of loading.
make_debian_kernel() {
  local image module file
  image=$(apt-cache "${backports_options[@]}" depends linux-image-cloud-amd64 |
    sed -n 's/.*Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1)
  [ -n "$image" ] || fail "linux-image-cloud-amd64 names no kernel"
  backports_download "$image"
  dpkg -x "$work"/apt/archives/"$image"_*.deb "$work/image"
  mkdir -p "$work/kernel/modules"
  cp "$work"/image/boot/vmlinuz-* "$work/kernel/bzImage"
  for module in virt/lib/irqbypass drivers/vfio/vfio drivers/vfio/vfio_iommu_type1 \
    drivers/vfio/pci/vfio-pci-core drivers/vfio/pci/vfio-pci drivers/iommu/virtio-iommu; do
    for file in "$work"/image/usr/lib/modules/*/kernel/$module.ko*; do
      [ -e "$file" ] || continue # built in
      case $file in
      *.xz) xz -dc "$file" ;;
      *) cat "$file" ;;
      esac >"$work/kernel/modules/$(basename $module).ko"
      echo "$(basename $module).ko" >>"$work/kernel/modules/list"
    done
  done
  mv -T "$work/kernel" "$kernel"
  say "kernel: $image of Debian"
}

# Every line of kernel.config must have been taken, but for names that this version does not know.
check_config() {
  local source=$1 option
  while read -r option; do
    grep -qx "$option=y" "$source/.config" && continue
    if grep -rqE "^[[:space:]]*(menu)?config ${option#CONFIG_}\$" --include='Kconfig*' "$source"; then
      fail "kernel.config: $option is not taken by Linux $version"
    fi
    say "kernel.config: Linux $version has no $option"
  done < <(sed -n 's/^\(CONFIG_[A-Z0-9_]*\)=y$/\1/p' "$here/kernel.config")
}

make_kernel() {
  local source=$work/source
  backports_download "linux-source-$version"
  dpkg -x "$work"/apt/archives/linux-source-"${version}"_*.deb "$work/package"
  mkdir "$source"
  # What is never read for this configuration stays packed.
  tar -C "$source" -xf "$work/package/usr/src/linux-source-$version.tar.xz" --strip-components=1 \
    --exclude='*/Documentation/*/*' --exclude='*/tools/testing/*/*' --exclude='*/arch/*/boot/dts/*/*' \
    --exclude='*/drivers/gpu/*.[ch]' --exclude='*/drivers/media/*.[ch]' --exclude='*/sound/*.[ch]'
  rm -rf "$work/package" "$work"/apt/archives/*.deb
  say "kernel source unpacked"
  make -C "$source" -s allnoconfig >"$work/config.log" 2>&1
  cat "$here/kernel.config" >>"$source/.config"
  make -C "$source" -s olddefconfig >>"$work/config.log" 2>&1
  check_config "$source"
  if ! make -C "$source" -s -j"$jobs" bzImage >"$work/build.log" 2>&1; then
    cp "$work/build.log" "$cache/kernel-build.log"
    tail -n 20 "$work/build.log" >&2
    fail "the kernel build (whole output: $cache/kernel-build.log)"
  fi
  mkdir "$work/kernel"
  cp "$source/arch/x86/boot/bzImage" "$source/.config" "$work/kernel"
  mv -T "$work/kernel" "$kernel"
  say "kernel $version built: $(du -h "$kernel/bzImage" | cut -f1)"
}

[ -x "$qemu/bin/qemu" ] || make_qemu
if [ ! -e "$kernel/bzImage" ]; then
  if [ "$version" = debian ]; then make_debian_kernel; else make_kernel; fi
fi
report
exit 0
}
