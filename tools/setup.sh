#!/usr/bin/env bash
# Installs the Debian packages of tools/packages.txt (or of the list that is given) that are missing, which
# alone needs root, and gets the kernel headers of the build (tools/uapi.sh).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

kernel_headers() {
  local directory
  directory=$("$here/uapi.sh")
  echo "setup: kernel headers: $directory"
}

missing=()
while read -r package; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' ||
    missing+=("$package")
done < <(sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "${1:-$here/packages.txt}")

if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: all packages are installed"
  kernel_headers
  exit 0
fi
echo "setup: installing ${missing[*]}"
if [ "$(id -u)" -ne 0 ]; then
  echo "setup: run as root, or install these packages yourself: ${missing[*]}" >&2
  exit 1
fi
log=$(mktemp)
if ! { apt-get update -qq &&
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o DPkg::Lock::Timeout=600 --no-install-recommends "${missing[@]}"; } \
  >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "setup: apt-get failed (whole log: $log)" >&2
  exit 1
fi
rm -f "$log"
kernel_headers
