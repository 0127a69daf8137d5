#!/usr/bin/env bash
# An emulated device: an address, network, mount, process and host names of its own, a userland for another processor under
# qemu's user emulation, a real sshd and a real adbd, and a /sys of your making. Needs root. tests/lab/device.rs calls this.
#
#   device.sh run NUMBER ARCH CPU FOLDER   stays for as long as the device; ending it ends all of the device
#   device.sh cut NUMBER | mend NUMBER     pulls its cable, puts it back
#   device.sh down NUMBER FOLDER           removes whatever is left of it
#
# NUMBER is 0 to 4095 and gives the device its name (farmgate-NUMBER) and address. ARCH is amd64, arm64, armhf or riscv64; CPU
# is one of qemu's names, or - for its default. From the environment, for `run`:
#   BUSYBOX      a static busybox of ARCH: the device's userland
#   PUBLIC_KEY   file with the ssh key that may log in as root
#   ADBD         folder with adbd and what it needs, as fetch.sh leaves it; without it there is no adb
#   SYSFIX       folder whose sys/ becomes the device's /sys, and whose cpuinfo and meminfo become those of its /proc
set -euo pipefail
command=$1 number=$2 name=farmgate-$2 link=fgl$2
network=10.213.$((number / 64)).$((number % 64 * 4))
here=${network%.*}.$((${network##*.} + 1)) there=${network%.*}.$((${network##*.} + 2))

# Lets the kernel start programs of ARCH by itself. The interpreter is opened once (flag F), so that the device needs no qemu.
understand() {
  local arch=$1 kind
  case $arch in
    amd64) return ;;
    arm64) kind=qemu-aarch64 ;;
    armhf) kind=qemu-arm ;;
    riscv64) kind=qemu-riscv64 ;;
  esac
  mountpoint -q /proc/sys/fs/binfmt_misc || mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
  [ -e "/proc/sys/fs/binfmt_misc/$kind" ] ||
    sed 's/:[A-Z]*$/:OPF/' "/usr/lib/binfmt.d/$kind.conf" >/proc/sys/fs/binfmt_misc/register ||
    [ -e "/proc/sys/fs/binfmt_misc/$kind" ] # another device was quicker
}

connect() {
  ip netns add "$name" 2>/dev/null || return 0 # it has come back
  ip link add "$link" type veth peer name eth0 netns "$name"
  ip addr add "$here/30" dev "$link"
  ip link set "$link" up
  ip -n "$name" addr add "$there/30" dev eth0
  ip -n "$name" link set eth0 up
  ip -n "$name" link set lo up
}

# The files of the device: one busybox, and links to it.
furnish() {
  local root=$1 applet
  mkdir -p "$root"/{bin,sbin,usr/bin,usr/sbin,etc,root/.ssh,proc,sys,dev,tmp,run/sshd,data/local/tmp,system/bin,opt}
  chmod 1777 "$root/tmp" "$root/data/local/tmp"
  chmod 700 "$root/root/.ssh"
  cp "$BUSYBOX" "$root/bin/busybox"
  for applet in $("$BUSYBOX" --list); do [ "$applet" = busybox ] || ln -sf /bin/busybox "$root/bin/$applet"; done
  ln -sfn /bin/busybox "$root/system/bin/sh"
  printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\nsshd:x:100:65534::/run/sshd:/bin/false\n' >"$root/etc/passwd"
  printf 'root:x:0:\nnogroup:x:65534:\nshell:x:2000:\n' >"$root/etc/group"
  echo "$name" >"$root/etc/hostname"
  if [ -n "${ADBD:-}" ]; then rm -rf "$root/opt/adbd" && cp -r "$ADBD" "$root/opt/adbd"; fi
}

serve_ssh() {
  local folder=$1 cpu=$2
  install -m 600 "$PUBLIC_KEY" "$folder/authorized"
  [ -f "$folder/host_key" ] || ssh-keygen -q -t ed25519 -N '' -C "$name" -f "$folder/host_key"
  cat >"$folder/sshd_config" <<CONF
Port 22
ListenAddress $there
HostKey $folder/host_key
PidFile none
AuthorizedKeysFile $folder/authorized
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PermitRootLogin prohibit-password
StrictModes no
PrintMotd no
MaxStartups 100
Subsystem sftp internal-sftp
ChrootDirectory /run/device
SetEnv PATH=/bin:/sbin:/usr/bin:/usr/sbin${cpu:+ QEMU_CPU=$cpu}
CONF
}

case $command in
  run)
    arch=$3 cpu=${4#-} folder=$5
    understand "$arch"
    connect
    mkdir -p "$folder"
    furnish "$folder/root"
    serve_ssh "$folder" "$cpu"
    if [ -n "${SYSFIX:-}" ]; then rm -rf "$folder/sys" && cp -r "$SYSFIX/sys" "$folder/sys"; fi
    export FOLDER=$folder NAME=$name SYSFIX=${SYSFIX:-} ADBD=${ADBD:-}
    if [ -n "$cpu" ]; then export QEMU_CPU=$cpu; fi
    exec ip netns exec "$name" unshare --mount --uts --pid --fork --kill-child bash "$(readlink -f "$0")" inside "$number"
    ;;
  inside)
    root=$FOLDER/root
    hostname "$NAME"
    mount --make-rprivate /
    mount -t proc proc "$root/proc"
    # a folder of the host, so that whoever tests can change it while the device can not
    if [ -n "$SYSFIX" ]; then mount --bind "$FOLDER/sys" "$root/sys" && mount -o remount,bind,ro "$root/sys"
    else mount -t sysfs -o ro sysfs "$root/sys"; fi
    for file in cpuinfo meminfo; do
      [ -z "$SYSFIX" ] || [ ! -f "$SYSFIX/$file" ] || mount --bind "$SYSFIX/$file" "$root/proc/$file"
    done
    mount -t tmpfs -o mode=755 dev "$root/dev"
    mkdir "$root/dev/pts"
    for node in null zero full random urandom tty; do : >"$root/dev/$node" && mount --bind "/dev/$node" "$root/dev/$node"; done
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    mount -t proc proc /proc
    mount -t tmpfs -o mode=755 run /run
    mkdir -p /run/sshd /run/device
    mount --rbind "$root" /run/device
    mount --bind "$root/etc/passwd" /etc/passwd
    mount --bind "$root/etc/group" /etc/group
    if [ -n "$ADBD" ]; then
      PATH=/system/bin:/bin:/sbin:/usr/bin HOME=/ \
        chroot "$root" /opt/adbd/ld.so --library-path /opt/adbd/lib /opt/adbd/adbd >>"$FOLDER/adbd.log" 2>&1 &
    fi
    exec /usr/sbin/sshd -D -e -f "$FOLDER/sshd_config"
    ;;
  cut) ip link set "$link" down ;;
  mend) ip link set "$link" up ;;
  down)
    for pid in $(ip netns pids "$name" 2>/dev/null); do kill -KILL "$pid" 2>/dev/null || true; done
    ip netns del "$name" 2>/dev/null || true
    ip link del "$link" 2>/dev/null || true
    rm -rf --one-file-system "$3"
    ;;
esac
