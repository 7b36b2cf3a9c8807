#!/bin/bash
# ovs.sh DIR: leaves Open vSwitch with DPDK in DIR, a peer of the network experiments. Debian's packages are
# unpacked, not installed: their installation starts a switch on the host, now and at each boot.
# What its programs link to is in scripts/packages. Several may ask at once.
set -euo pipefail

PACKAGES=(openvswitch-common openvswitch-switch openvswitch-switch-dpdk)

say() { echo "ovs: $*" >&2; }

out=${1:?usage: ovs.sh DIR}
[[ -e $out/complete ]] && exit 0
mkdir -p "$out"
exec {lock}>"$out/lock"
flock "$lock"
[[ -e $out/complete ]] && exit 0

debs=$(mktemp -d)
trap 'rm -rf "$debs"' EXIT
download() { (cd "$debs" && apt-get -qq -o APT::Sandbox::User=root download "${PACKAGES[@]}" >&2); }
say "downloading ${PACKAGES[*]}"
if ! download; then
    say "updating the package lists"
    apt-get -qq update >&2
    download
fi
for deb in "$debs"/*.deb; do dpkg-deb -x "$deb" "$out"; done
touch "$out/complete"
