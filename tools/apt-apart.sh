#!/usr/bin/env bash
# Sourced by scripts that take Debian's packages apart: `apt_apart FOLDER "SUITE ARCHITECTURE…"…` makes an apt state of its
# own in FOLDER and points apt-get there, so that packages of other suites and architectures can be downloaded. It asks no
# rights and touches nothing of this system; the mirrors are the ones that its apt is set up with.

die() { printf 'error: %s\n\nhint: %s\n' "$1" "$2" >&2; exit 1; }

# The mirror that this system's apt uses for a suite.
apt_mirror() {
  awk -v suite="$1" 'BEGIN { RS = ""; FS = "\n" }
    { uri = ""; has = 0
      for (i = 1; i <= NF; i++) {
        if ($i ~ /^URIs:/) { split($i, words, " "); uri = words[2] }
        if ($i ~ /^Suites:/) { n = split($i, words, " "); for (w = 2; w <= n; w++) if (words[w] == suite) has = 1 }
      }
      if (has) { print uri; exit } }' /etc/apt/sources.list.d/*.sources 2>/dev/null
}

apt_apart() {
  local state=$1 main security line suite uri
  shift
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || die "this is no Debian" "run on a Debian 12"
  main=$(apt_mirror bookworm)
  [ -n "$main" ] || die "no package source for Debian 12 in /etc/apt/sources.list.d/*.sources" "run on a Debian 12"
  security=$(apt_mirror bookworm-security)
  rm -rf "$state"
  mkdir -p "$state"/etc/{sources.list.d,preferences.d,apt.conf.d} "$state"/lists/partial "$state"/cache/archives/partial
  : >"$state/status"
  for line in "$@"; do
    suite=${line%% *} uri=$main
    if [ "$suite" = bookworm-security ]; then uri=${security:-$main}; fi
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nArchitectures: %s\n' "$uri" "$suite" "${line#* }"
    printf 'Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n'
  done >"$state/etc/sources.list.d/all.sources"
  cat >"$state/apt.conf" <<CONF
APT::Architecture "amd64";
APT::Architectures { "amd64"; "arm64"; "armhf"; "riscv64"; };
APT::Default-Release "bookworm";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
Dir::Etc "$state/etc";
Dir::State "$state";
Dir::State::Lists "$state/lists";
Dir::State::status "$state/status";
Dir::Cache "$state/cache";
CONF
  export APT_CONFIG=$state/apt.conf
  apt-get -qq update
}
