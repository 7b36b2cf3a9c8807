#!/bin/bash
# ovs.sh DIR: unpacks Open vSwitch with DPDK into DIR, as a peer of the network experiments. The script
# does not install Debian's packages, because that would start a switch on the host, now and at each
# boot. scripts/packages lists the libraries that the programs need. Concurrent runs are safe.
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
