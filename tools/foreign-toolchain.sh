#!/usr/bin/env bash
# foreign-toolchain.sh FOLDER: unpacks Debian's Rust compiler into FOLDER, with the standard library for aarch64, armv7
# (hard float) and riscv64, where rustup cannot fetch its targets. Needs a Debian 12 with its own package sources; asks no
# rights and installs nothing: packages are downloaded under an apt state of their own and unpacked. 1.3 GB, about a minute.
#
# Then: RUSTC=FOLDER/usr/bin/rustc LD_LIBRARY_PATH=FOLDER/usr/lib FOLDER/usr/bin/cargo build --target aarch64-unknown-linux-gnu
# The linkers are Debian's too: gcc-aarch64-linux-gnu, gcc-arm-linux-gnueabihf, gcc-riscv64-linux-gnu.
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/apt-apart.sh"
[ $# = 1 ] || die "one folder is needed" "tools/foreign-toolchain.sh FOLDER"
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
  die "this is no Debian" "elsewhere: rustup target add aarch64-unknown-linux-gnu and the like"

mkdir -p "$1"
folder=$(cd "$1" && pwd)
if [ -e "$folder/complete" ]; then exit 0; fi
state=$folder/apt
rm -rf "$folder/usr"
mkdir -p "$folder/packages"
# Compiler and libraries are those of this suite; the foreign standard libraries of the same version come with the next one.
apt_apart "$state" "bookworm amd64" "bookworm-security amd64 arm64" "trixie arm64 armhf riscv64"

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
