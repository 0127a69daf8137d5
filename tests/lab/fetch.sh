#!/usr/bin/env bash
# fetch.sh FOLDER: what emulated devices are made of, from Debian's packages; nothing is installed. A few seconds, 40 MB.
#
#   FOLDER/busybox-ARCH   a static busybox for amd64, arm64, armhf and riscv64: the userland of a device
#   FOLDER/adbd           the real adbd 34 with all that it loads, so that it can be copied into any device
#   FOLDER/adb            the adb client and server 34 that belong to it
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/../../tools/apt-apart.sh"
[ $# = 1 ] || die "one folder is needed" "tests/lab/fetch.sh FOLDER"
mkdir -p "$1"
folder=$(cd "$1" && pwd)
# several may want it at once
exec 9>"$folder/lock"
flock 9
if [ -e "$folder/complete" ]; then exit 0; fi
work=$folder/work
trap 'rm -rf "$work"' EXIT
rm -rf "$work" "$folder/adbd" "$folder/tree"
mkdir -p "$work/packages" "$folder/adbd/lib" "$folder/tree"

apt_apart "$work/apt" "bookworm amd64 arm64 armhf" "bookworm-backports amd64" "trixie riscv64"
cd "$work/packages"
for arch in amd64 arm64 armhf; do apt-get -qq download "busybox-static:$arch/bookworm"; done
apt-get -qq download busybox-static:riscv64/trixie
for arch in amd64 arm64 armhf riscv64; do
  dpkg-deb -x busybox-static_*_"$arch".deb "$work/$arch"
  install -m 755 "$(find "$work/$arch" -path '*/bin/busybox' -type f)" "$folder/busybox-$arch"
done

rm -f ./*.deb
android=(adbd adb android-libbase android-libboringssl android-libcutils android-liblog android-libziparchive)
apt-get -qq download "${android[@]/%//bookworm-backports}" libprotobuf32 libbrotli1 liblz4-1 libzstd1 libsystemd0 \
  libusb-1.0-0 libcap2 libgcrypt20 libgpg-error0 liblzma5
for package in *.deb; do dpkg-deb -x "$package" "$folder/tree"; done
libraries=$folder/tree/usr/lib/x86_64-linux-gnu/android:$folder/tree/usr/lib/x86_64-linux-gnu:$folder/tree/lib/x86_64-linux-gnu
programs=$folder/tree/usr/lib/android-sdk/platform-tools
cp "$programs/adbd" "$folder/adbd/adbd"
LD_LIBRARY_PATH=$libraries ldd "$programs/adbd" | awk '/=> \//{ print $3 }' | xargs -I{} cp -Lu {} "$folder/adbd/lib/"
cp -L /lib64/ld-linux-x86-64.so.2 "$folder/adbd/ld.so"
cat >"$folder/adb" <<'SH'
#!/bin/sh
tree=$(dirname "$(readlink -f "$0")")/tree
LD_LIBRARY_PATH=$tree/usr/lib/x86_64-linux-gnu/android:$tree/usr/lib/x86_64-linux-gnu:$tree/lib/x86_64-linux-gnu \
  exec "$tree/usr/lib/android-sdk/platform-tools/adb" "$@"
SH
chmod +x "$folder/adb"
"$folder/adb" version >&2
touch "$folder/complete"
