#!/usr/bin/env bash
# bochs.sh FOLDER PROGRAM [ARGUMENT...]: runs a program for Linux on an emulated processor with AVX-VNNI and AVX-512 VNNI
# (Bochs 3.0, its model of Sapphire Rapids), for machines that have neither. Packages of Debian 13 are downloaded under an
# apt state of their own and unpacked into FOLDER (250 MB); nothing is installed, no rights are asked. What the program
# prints comes on stdout. Booting takes half a minute on an idle machine, and then all is a few hundred times slower than
# the machine itself, so choose few tests:
#
#   cargo test -p farmgate-engine --lib --no-run     # names the program
#   PROPTEST_CASES=2 tools/bochs.sh .cache/bochs PROGRAM kernels::tests::on_x86 kernels::tests::all --test-threads=1
set -euo pipefail
die() { printf 'error: %s\n\nhint: %s\n' "$1" "$2" >&2; exit 1; }
[ $# -ge 2 ] || die "a folder and a program are needed" "tools/bochs.sh FOLDER PROGRAM [ARGUMENT...]"
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || die "this is no Debian" "run on a Debian"
mkdir -p "$1"
folder=$(cd "$1" && pwd)
program=$2
shift 2
[ -x "$program" ] || die "$program is no program" "cargo test -p farmgate-engine --lib --no-run names one"
root=$folder/root

fetch() {
  local state=$folder/apt kernel mirror
  rm -rf "$state" "$root"
  mkdir -p "$state"/etc/{sources.list.d,preferences.d,apt.conf.d} "$state"/lists/partial "$state"/cache/archives/partial "$root"
  : >"$state/status"
  # the mirror that this system's apt uses
  mirror=$(cat /etc/apt/sources.list.d/*.sources 2>/dev/null | awk '/^URIs:/ { print $2; exit }')
  [ -n "$mirror" ] || die "no package source in /etc/apt/sources.list.d/*.sources" "run on a Debian 12 or later"
  printf 'Types: deb\nURIs: %s\nSuites: trixie\nComponents: main\nArchitectures: amd64\nSigned-By: %s\n' \
    "$mirror" /usr/share/keyrings/debian-archive-keyring.gpg >"$state/etc/sources.list.d/debian.sources"
  local apt=(-qq -o "Dir::Etc=$state/etc" -o "Dir::State=$state" -o "Dir::State::status=$state/status"
    -o "Dir::State::lists=$state/lists" -o "Dir::Cache=$state/cache" -o APT::Sandbox::User=root)
  apt-get "${apt[@]}" update
  kernel=$(apt-cache "${apt[@]}" depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
  apt-get "${apt[@]}" install -y --no-install-recommends --download-only \
    bochs bochs-term busybox-static cpio isolinux syslinux-common xorriso >/dev/null
  (cd "$state/cache/archives" && apt-get "${apt[@]}" download "$kernel")
  for package in "$state"/cache/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
  rm -rf "$state"
  touch "$folder/complete"
}
[ -e "$folder/complete" ] || fetch

# Programs of that Debian, with its own loader and libraries.
with_its_libraries() {
  local program=$1
  shift
  "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$root/usr/lib/x86_64-linux-gnu" "$root/usr/bin/$program" "$@"
}

# A root file system of the program, its libraries and what starts it.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/init/{dev,proc,sys,tmp,bin} "$work/disk/isolinux"
cp "$root/usr/bin/busybox" "$work/init/bin/busybox"
strip -o "$work/init/program" "$program"
for library in $(ldd "$program" | grep -o '/[^ ]*'); do
  mkdir -p "$work/init$(dirname "$library")"
  cp -L "$library" "$work/init$library"
done
{
  printf '#!/bin/busybox sh\n/bin/busybox mount -t devtmpfs dev /dev; /bin/busybox mount -t proc proc /proc\n'
  printf 'echo begin-of-output; PROPTEST_CASES=%q /program' "${PROPTEST_CASES:-2}"
  printf ' %q' "$@"
  printf '; echo "exit status $?"; echo end-of-output; /bin/busybox sleep 1000\n'
} >"$work/init/init"
chmod +x "$work/init/init"
(cd "$work/init" && find . | with_its_libraries cpio -o -H newc --quiet | gzip -1) >"$work/disk/isolinux/initrd.gz"

# The kernel knows nothing of this model's tiles, whose state Bochs does not save.
cp "$root"/boot/vmlinuz-* "$work/disk/isolinux/vmlinuz"
cp "$root/usr/lib/ISOLINUX/isolinux.bin" "$root/usr/lib/syslinux/modules/bios/ldlinux.c32" "$work/disk/isolinux"
printf 'default l\nprompt 0\ntimeout 1\nlabel l\n kernel vmlinuz\n append initrd=initrd.gz %s\n' \
  "console=ttyS0 quiet panic=-1 mitigations=off nokaslr acpi=off maxcpus=1 clearcpuid=amx_tile,amx_int8,amx_bf16" \
  >"$work/disk/isolinux/isolinux.cfg"
with_its_libraries xorriso -as mkisofs -quiet -o "$work/disk.iso" -b isolinux/isolinux.bin -c isolinux/boot.cat \
  -no-emul-boot -boot-load-size 4 -boot-info-table "$work/disk" 2>/dev/null

cat >"$work/bochsrc" <<EOF
display_library: term
config_interface: textconfig
megs: 512
cpu: model=sapphire_rapids, count=1, ips=10000000, reset_on_triple_fault=0
romimage: file=$root/usr/share/bochs/BIOS-bochs-latest, options=fastboot
vgaromimage: file=$root/usr/share/vgabios/vgabios.bin
ata0-master: type=cdrom, path=$work/disk.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$work/serial
log: $work/log
panic: action=fatal
clock: sync=none
EOF
echo c >"$work/go"

# Its screen is a terminal that nobody looks at; the serial line is what the program prints.
: >"$work/serial"
libraries=$root/usr/lib/x86_64-linux-gnu
cat >"$work/start" <<EOF
echo \$\$ >"$work/pid"
export TERM=xterm LTDL_LIBRARY_PATH="$libraries/bochs/plugins" BXSHARE="$root/usr/share/bochs"
exec "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$libraries:$libraries/pulseaudio" \
  "$root/usr/bin/bochs-bin" -q -f "$work/bochsrc" -rc "$work/go"
EOF
script -qfc "bash '$work/start'" /dev/null </dev/null >/dev/null 2>&1 &
emulator=$!
trap 'kill -KILL "$(cat "$work/pid")" 2>/dev/null || true; wait "$emulator" 2>/dev/null || true; rm -rf "$work"' EXIT
deadline=$((SECONDS + ${TIMEOUT_S:-1800}))
until grep -q '^end-of-output' "$work/serial"; do
  kill -0 "$emulator" 2>/dev/null || die "the emulator ended: $(tail -n 1 "$work/log")" "look at what FOLDER holds"
  [ "$SECONDS" -lt "$deadline" ] || die "no end within ${TIMEOUT_S:-1800} s" "fewer tests, or a larger TIMEOUT_S"
  sleep 1
done
tr -d '\r' <"$work/serial" | sed -n '/^begin-of-output/,/^end-of-output/p' | sed '1d;$d'
tr -d '\r' <"$work/serial" | grep -q '^exit status 0$'
