#!/usr/bin/env bash
# foreign-toolchain.sh FOLDER: unpacks Debian's Rust compiler into FOLDER, with the standard library for aarch64, armv7
# (hard float) and riscv64, where rustup cannot fetch its targets. Needs a Debian 12 with its own package sources; asks no
# rights and installs nothing: packages are downloaded under an apt state of their own and unpacked. 1.3 GB, about a minute.
#
# Then: RUSTC=FOLDER/usr/bin/rustc LD_LIBRARY_PATH=FOLDER/usr/lib FOLDER/usr/bin/cargo build --target aarch64-unknown-linux-gnu
# The linkers are Debian's too: gcc-aarch64-linux-gnu, gcc-arm-linux-gnueabihf, gcc-riscv64-linux-gnu.
set -euo pipefail
die() { printf 'error: %s\n\nhint: %s\n' "$1" "$2" >&2; exit 1; }
[ $# = 1 ] || die "one folder is needed" "tools/foreign-toolchain.sh FOLDER"
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
  die "this is no Debian" "elsewhere: rustup target add aarch64-unknown-linux-gnu and the like"

mkdir -p "$1"
folder=$(cd "$1" && pwd)
if [ -e "$folder/complete" ]; then exit 0; fi
state=$folder/apt
rm -rf "$state" "$folder/usr" && mkdir -p "$state"/etc/{sources.list.d,preferences.d,apt.conf.d} \
  "$state"/lists/partial "$state"/cache/archives/partial "$folder/packages"
: >"$state/status"

# The mirror that this system's apt uses for a suite.
mirror() {
  awk -v suite="$1" 'BEGIN { RS = ""; FS = "\n" }
    { uri = ""; has = 0
      for (i = 1; i <= NF; i++) {
        if ($i ~ /^URIs:/) { split($i, words, " "); uri = words[2] }
        if ($i ~ /^Suites:/) { n = split($i, words, " "); for (w = 2; w <= n; w++) if (words[w] == suite) has = 1 }
      }
      if (has) { print uri; exit } }' /etc/apt/sources.list.d/*.sources 2>/dev/null
}
main=$(mirror bookworm)
[ -n "$main" ] || die "no package source for Debian 12 in /etc/apt/sources.list.d/*.sources" "run on a Debian 12"
security=$(mirror bookworm-security)

# Compiler and libraries are those of this suite; the foreign standard libraries of the same version come with the next one.
source_of() {
  printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nArchitectures: %s\n' "$@"
  printf 'Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n'
}
{
  source_of "$main" bookworm amd64
  source_of "${security:-$main}" bookworm-security "amd64 arm64"
  source_of "$main" trixie "arm64 armhf riscv64"
} >"$state/etc/sources.list.d/all.sources"
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

package=rustc-web
version=$(apt-cache madison "$package" | awk -F' *[|] *' '/bookworm-security.*amd64/ { print $2; exit }')
[ -n "$version" ] || die "no $package in the security suite" "the suite may have renamed it: apt-cache search rustc"
upstream=${version%%+*}
std=libstd-rust-web-dev
wanted=("$package=$version" "cargo-web=$version" "$std=$version" "libstd-rust-web-${upstream%.*}=$version"
  "libllvm22/bookworm-security" libgit2-1.5/bookworm libhttp-parser2.9/bookworm libmbedcrypto7/bookworm
  libmbedx509-1/bookworm libmbedtls14/bookworm)
for arch in arm64 armhf riscv64; do
  same=$(apt-cache madison "$std:$arch" | awk -F' *[|] *' -v v="$upstream+" 'index($2, v) == 1 { print $2; exit }')
  [ -n "$same" ] || die "no standard library of Rust $upstream for $arch" "the suites are out of step; try again later"
  wanted+=("$std:$arch=$same")
done

cd "$folder/packages"
apt-get -qq download "${wanted[@]}"
for package in *.deb; do dpkg-deb -x "$package" "$folder"; done
cd "$folder/usr/lib"
for library in x86_64-linux-gnu/*.so*; do ln -sf "$library" .; done
rm -rf "$state" "$folder/packages" "$folder/usr/share"
LD_LIBRARY_PATH=$folder/usr/lib "$folder/usr/bin/rustc" --version
touch "$folder/complete"
