# Packages of a Debian suite newer than this machine's, through an apt state of its own on the
# mirror that this machine uses already. Nothing is installed and apt's own state stays as it is.
# To be sourced (tools/uapi.sh, tests/rig/setup.sh).

# backports_open DIR SUITE...: reads the package lists into DIR, where everything of this state is kept.
backports_open() {
  local dir=$1 mirror suite
  shift
  mirror=$(backports_mirror)
  if [ -z "$mirror" ]; then
    apt-get update -qq >"$dir/update.log" 2>&1 || true
    mirror=$(backports_mirror)
  fi
  if [ -z "$mirror" ]; then
    echo "apt knows no Debian mirror (apt-get indextargets lists none): add one to /etc/apt" >&2
    return 1
  fi
  mkdir -p "$dir"/{lists/partial,archives/partial}
  for suite in "$@"; do
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n\n' \
      "$mirror" $suite /usr/share/keyrings/debian-archive-keyring.gpg
  done >"$dir/debian.sources"
  # An empty status: a package comes with all that it needs.
  : >"$dir/status"
  backports_options=(-q
    -o "Dir::Etc::sourcelist=$dir/debian.sources" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null
    -o "Dir::State=$dir" -o "Dir::State::lists=$dir/lists" -o "Dir::State::status=$dir/status"
    -o "Dir::Cache=$dir" -o "Dir::Cache::archives=$dir/archives"
    -o APT::Sandbox::User=root -o APT::Install-Recommends=false
    -o Acquire::Retries=3 -o Acquire::Languages=none)
  backports_directory=$dir
  backports_run update apt-get "${backports_options[@]}" update
}

backports_mirror() {
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | sed -n 1p
}

# backports_download PACKAGE[/SUITE]...: these packages alone, into DIR/archives.
backports_download() {
  backports_run download env -C "$backports_directory/archives" \
    apt-get "${backports_options[@]}" download "$@"
}

# backports_download_all PACKAGE: with all that it depends on, into DIR/archives.
backports_download_all() {
  backports_run install apt-get "${backports_options[@]}" -y --download-only \
    install -t trixie-backports "$@"
}

# What a step says goes to a log; its end is shown when it fails.
backports_run() {
  local log=$backports_directory/$1.log
  shift
  "$@" >"$log" 2>&1 && return 0
  tail -n 5 "$log" >&2
  echo "failed: ${*: -1} (apt's whole output: $log)" >&2
  return 1
}
