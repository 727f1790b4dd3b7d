#!/usr/bin/env bash
# Packs the guest's root file system: busybox, init, the modules of the kernel where it has any, and
# programs of a build, stripped, with the loader and libraries that they are linked with.
#
#   tests/rig/initramfs.sh OUT KERNEL_DIRECTORY PROGRAM...
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$1 kernel=$2
shift 2

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root" # it is the guest's /
mkdir -p "$root"/{bin,dev,proc,sys,tmp,run,etc,gpuumd/bin}
cp "$(command -v busybox)" "$root/bin/busybox"
install -m 755 "$here/init" "$root/init"
printf 'root:x:0:0:root:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n' >"$root/etc/passwd"
[ ! -d "$kernel/modules" ] || cp -r "$kernel/modules" "$root/modules"
for program in "$@"; do
  strip -o "$root/gpuumd/bin/$(basename "$program")" "$program"
  while read -r library; do
    case $library in
    /lib/* | /lib64/* | /usr/*) place=$root$library ;;
    *) place=$root/gpuumd/lib/$(basename "$library") ;; # the build's own
    esac
    [ -e "$place" ] && continue
    mkdir -p "${place%/*}"
    strip -o "$place" "$(readlink -f "$library")" 2>/dev/null || cp -L "$library" "$place"
  done < <(ldd "$program" | grep -o '/[^ )]*')
done
(cd "$root" && find . | cpio -o -H newc -R 0:0 --quiet) | gzip -1 >"$out.$$"
mv "$out.$$" "$out"
