#!/bin/bash
# build.sh OUTDIR: builds the test guest's `vmlinuz`, `vmlinux`, `initramfs.img` and `small.img` from Debian
# packages.
# Nothing is installed on the host. README.md beside this file tells the rest.
set -euo pipefail
export LC_ALL=C

PROGRAMS=(busybox-static fio iperf3 e2fsprogs ethtool acpid qemu-guest-agent)
# What the programs link to. A library that is missing here ends the build with its name.
LIBRARIES=(libc6 libnuma1 zlib1g libaio1 libiperf0 libssl3 libsctp1 libext2fs2 libcom-err2
    libblkid1 libuuid1 libglib2.0-0 libpcre2-8-0 liburing2 libudev1 libmnl0)
# fio links to libraries of engines that no guest uses; with their dependencies they weigh 80 MB
# and are relocated at each start. They become empty stubs.
STUBBED=(libgfapi.so.0 libnbd.so.0 libibverbs.so.1 librdmacm.so.1 librados.so.2 librbd.so.1
    libpmemblk.so.1 libpmem.so.1)
FILES=(usr/bin/busybox usr/bin/fio usr/bin/iperf3 usr/sbin/mke2fs usr/sbin/e2fsck
    usr/sbin/dumpe2fs usr/sbin/resize2fs usr/sbin/ethtool usr/sbin/acpid usr/sbin/qemu-ga)
MODULES=(virtio_pci virtio_blk virtio_net virtio_console virtio_scsi sd_mod virtio_balloon
    virtio-rng sr_mod pvpanic-mmio button evdev crc32c-intel libcrc32c 8021q)

# What the small initramfs lacks: it boots in 96 MiB, and has the shell, the agent and the drivers.
NOT_SMALL='(fio|iperf3|mke2fs|e2fsck|dumpe2fs|resize2fs|ethtool|(mkfs|fsck)\.ext[34]|lib(crypto|ssl|ext2fs|e2p|blkid|uuid|com_err|iperf|sctp|z|mnl|aio)\.so.*)'

say() { echo "guest: $*" >&2; }
die() { say "$*"; exit 1; }

# The host's tools, each with the package that brings it.
check_host() {
    local missing=() pair
    for pair in apt-get:apt dpkg-deb:dpkg cpio:cpio cc:gcc readelf:binutils \
        flock:util-linux find:findutils lz4:lz4; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
    done
    [ ${#missing[@]} -eq 0 ] || die "missing tools; run: apt-get install ${missing[*]}"
    [ "$(dpkg --print-architecture)" = amd64 ] || die "the guest is built on amd64 only"
}

update_lists() {
    [ "$(id -u)" -eq 0 ] ||
        die "Debian's package lists are missing or old; as root run: apt-get update"
    say "updating the package lists"
    apt-get -qq update >&2 ||
        die "apt-get update failed; are Debian 12's sources configured and reachable?"
}

# Prints one line for each package: address, file, size and digest of the version to take.
resolve() {
    local kernel
    kernel=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null |
        awk '/Depends: linux-image-/ {print $2; exit}')
    [ -n "$kernel" ] || return 1
    apt-get -qq --print-uris download "$kernel" "${PROGRAMS[@]}" "${LIBRARIES[@]}" 2>/dev/null |
        sort
}

# fetch DIR: leaves in DIR just the packages of $sources.
fetch() {
    local file name names=()
    mkdir -p "$1"
    while read -r _ file _; do
        name=${file%%_*} file=${file%_*}
        file=${file#*_}
        names+=("$name=${file//%3a/:}")
    done <<<"$sources"
    say "downloading ${#names[@]} packages"
    (cd "$1" && apt-get -qq -o APT::Sandbox::User=root download "${names[@]}" >&2) || return 1
    for file in "$1"/*.deb; do
        grep -qF " ${file##*/} " <<<"$sources" || rm "$file"
    done
}

# unpack DEBS TREE: all packages into one tree, with / merged into /usr.
unpack() {
    local deb dir
    mkdir -p "$2"
    for deb in "$1"/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x --no-same-owner -C "$2"; done
    for dir in bin sbin lib lib64; do
        [ -d "$2/$dir" ] || continue
        mkdir -p "$2/usr/$dir"
        cp -al "$2/$dir/." "$2/usr/$dir/"
        rm -r "${2:?}/$dir"
    done
}

needed() { readelf -d "$1" 2>/dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }

# stub SONAME PROGRAM FILE: a library with the symbols that PROGRAM wants of SONAME; each one traps.
stub() {
    local versions symbols prefix work
    work=$(mktemp -d "$scratch/stub.XXXX")
    prefix=${1%%.*}_ prefix=${prefix#lib}
    versions=$(readelf -VW "$2" | awk -v lib="$1" '
        /File:/ {mine = ($0 ~ "File: " lib " ")} /Name:/ && mine {sub(/.*Name: /, ""); print $1}')
    symbols=$(readelf -W --dyn-syms "$2" | awk '$7 == "UND" {print $8}')
    : >"$work/stub.map"
    {
        for version in $versions; do
            echo "$version {" >>"$work/stub.map"
            for symbol in $(sed -n "s/@$version\$//p" <<<"$symbols"); do
                echo "void $symbol(void) { __builtin_trap(); }"
                echo "$symbol;" >>"$work/stub.map"
            done
            echo "};" >>"$work/stub.map"
        done
        [ -n "$versions" ] || for symbol in $(grep "^$prefix" <<<"$symbols"); do
            echo "void $symbol(void) { __builtin_trap(); }"
        done
    } >"$work/stub.c"
    [ -n "$versions" ] && set -- "$@" "-Wl,--version-script=$work/stub.map"
    cc -shared -fPIC -nostdlib -O1 -Wl,-soname="$1" -o "$3" "$work/stub.c" "${@:4}"
}

# libraries TREE ROOT: closes ROOT over the shared libraries that its programs need.
libraries() {
    local dir=usr/lib/x86_64-linux-gnu queue=() file name
    mkdir -p "$2/$dir" "$2/usr/lib64"
    cp -L "$1/usr/lib64/ld-linux-x86-64.so.2" "$2/usr/lib64/"
    for name in "${STUBBED[@]}"; do stub "$name" "$1/usr/bin/fio" "$2/$dir/$name"; done
    mapfile -t queue < <(find "$2/usr/bin" "$2/usr/sbin" -type f)
    while [ ${#queue[@]} -gt 0 ]; do
        file=${queue[0]} queue=("${queue[@]:1}")
        for name in $(needed "$file"); do
            [ ! -e "$2/$dir/$name" ] && [ "$name" != ld-linux-x86-64.so.2 ] || continue
            [ -e "$1/$dir/$name" ] ||
                die "${file##*/} needs $name: add its package to LIBRARIES in guest/build.sh"
            cp -L "$1/$dir/$name" "$2/$dir/$name"
            queue+=("$2/$dir/$name")
        done
    done
}

# modules TREE ROOT VERSION: the drivers with what they depend on, and the guest's own index.
modules() {
    local from=$1/usr/lib/modules/$3 to=$2/usr/lib/modules/$3 module line
    "$1/usr/bin/busybox" depmod -b "$1/usr" "$3"
    for module in "${MODULES[@]}"; do
        line=$(grep "/$module\.ko:" "$from/modules.dep") ||
            grep -q "/$module\.ko" "$from/modules.builtin" ||
            die "kernel $3 has no module $module: mend MODULES in guest/build.sh"
        for module in ${line/:/}; do install -D -m 644 "$from/$module" "$to/$module"; done
    done
    cp "$from/modules.builtin" "$from/modules.order" "$to/"
    "$1/usr/bin/busybox" depmod -b "$2/usr" "$3"
    rm -f "$to/modules.symbols" "$to/modules.order"
}

# root TREE ROOT VERSION: the file tree of the guest.
root() {
    local file applet
    mkdir -p "$2"/{dev,proc,sys,run,tmp,mnt,root,etc,var} "$2"/usr/{bin,sbin,lib,lib64}
    for file in bin sbin lib lib64; do ln -s "usr/$file" "$2/$file"; done
    ln -s ../run "$2/var/run"
    for file in "${FILES[@]}"; do cp -L "$1/$file" "$2/$file"; done
    for file in mkfs.ext4 mkfs.ext3; do ln -s mke2fs "$2/usr/sbin/$file"; done
    for file in fsck.ext4 fsck.ext3; do ln -s e2fsck "$2/usr/sbin/$file"; done
    cp -r "$here/root/." "$2/"
    libraries "$1" "$2"
    for applet in $("$1/usr/bin/busybox" --list); do
        [ -e "$2/usr/bin/$applet" ] || [ -e "$2/usr/sbin/$applet" ] ||
            ln -s busybox "$2/usr/bin/$applet"
    done
    # The kernel and init call these two by path.
    for applet in modprobe poweroff; do mv "$2/usr/bin/$applet" "$2/usr/sbin/"; done
    for applet in modprobe poweroff; do ln -sf ../bin/busybox "$2/usr/sbin/$applet"; done
    modules "$1" "$2" "$3"
}

# number FILE OFFSET BYTES: the little-endian number there.
number() { od -A n -j "$2" -N "$3" -t "u$3" "$1" | tr -d ' '; }

# unpack_kernel BZIMAGE FILE: the kernel without its decompressor, which takes a translated guest a
# second. The header's fields: the kernel's Documentation/arch/x86/boot.rst.
unpack_kernel() {
    local start length
    start=$((($(number "$1" $((0x1f1)) 1) + 1) * 512 + $(number "$1" $((0x248)) 4)))
    length=$(number "$1" $((0x24c)) 4)
    # The last four bytes are the unpacked length.
    dd if="$1" iflag=skip_bytes,count_bytes skip="$start" count="$((length - 4))" bs=1M status=none |
        lz4 -dcq >"$2" ||
        die "kernel ${1##*/} is not packed with lz4: mend unpack_kernel in guest/build.sh"
}

# pack ROOT FILE [PATTERN]: an initramfs without the files whose names match. It is not compressed: a
# translated guest needs a fifth of its boot to unpack it.
pack() {
    (cd "$1" && find . -print0 | sort -z | grep -zvE "/${3:-//}\$" |
        cpio --null --create --format=newc --owner=0:0 --reproducible --quiet) >"$2"
}

# generation NAME: builds OUTDIR/NAME and makes it the current one in one step.
generation() {
    local tree=$scratch/tree root=$scratch/root new=$scratch/new version kernel
    unpack "$out/packages" "$tree"
    kernel=$(echo "$tree"/boot/vmlinuz-*)
    version=${kernel##*/vmlinuz-}
    say "assembling the initramfs for kernel $version"
    root "$tree" "$root" "$version"
    mkdir "$new"
    cp "$kernel" "$new/vmlinuz"
    unpack_kernel "$kernel" "$new/vmlinux"
    pack "$root" "$new/initramfs.img"
    pack "$root" "$new/small.img" "($NOT_SMALL|($(IFS='|'; echo "${STUBBED[*]}")))"
    rm -rf "${out:?}/$1"
    mv "$new" "$out/$1"
    ln -sfnT "$1" "$out/current.new" && mv -T "$out/current.new" "$out/current"
    for kernel in vmlinuz vmlinux initramfs.img small.img; do ln -sfn "current/$kernel" "$out/$kernel"; done
    echo "$1" >"$out/stamp"
}

# Drops all generations but the current one and the one before: a guest may be about to read it.
forget() {
    local old
    for old in $(cd "$out" && ls -td build-* | tail -n +3); do
        rm -rf "${out:?}/$old"
    done
}

[ $# -eq 1 ] || { echo "usage: guest/build.sh OUTDIR" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
check_host
mkdir -p "$1"
out=$(cd "$1" && pwd)
exec 9>"$out/lock"
flock 9

if ! sources=$(resolve); then
    update_lists
    sources=$(resolve) || die "Debian 12's linux-image-cloud-amd64 is not in the package lists"
fi
inputs() {
    echo "$sources"
    (cd "$here" && find build.sh root -type f -print0 | sort -z | xargs -0 sha256sum)
}
key=build-$(inputs | sha256sum | cut -c1-16)
if [ -e "$out/$key/initramfs.img" ] && [ "$(cat "$out/stamp" 2>/dev/null)" = "$key" ]; then
    exit 0
fi
rm -rf "$out"/.scratch.* # of builds that were killed
scratch=$(mktemp -d "$out/.scratch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
if ! fetch "$out/packages"; then
    # Debian drops superseded versions from its servers: old lists then point nowhere.
    update_lists
    sources=$(resolve)
    fetch "$out/packages" || die "the packages cannot be downloaded"
    key=build-$(inputs | sha256sum | cut -c1-16)
fi
generation "$key"
forget
say "$out: vmlinuz, vmlinux, initramfs.img ($(du -hL "$out/initramfs.img" | cut -f1))"
