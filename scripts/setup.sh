#!/bin/bash
# Installs missing Debian packages and names each one with its reason. Does nothing if none is missing.
# Lists: scripts/packages, guest/packages (a name, then `#` and the reason).
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "setup: $*" >&2; }

if ! command -v cargo >/dev/null; then
    say "Rust is missing; install it with rustup (https://rustup.rs), then run this command again"
    exit 1
fi

missing=()
while read -r name _ reason; do
    [[ -z $name || $name == \#* ]] && continue
    if ! dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'install ok installed'; then
        say "$name is missing: ${reason:-needed by the build}"
        missing+=("$name")
    fi
done < <(cat scripts/packages guest/packages)
[[ ${#missing[@]} -eq 0 ]] && exit 0

if [[ $(id -u) -eq 0 ]]; then
    as_root=()
elif command -v sudo >/dev/null; then
    as_root=(sudo)
else
    say "as root, run: apt-get install ${missing[*]}"
    exit 1
fi
say "installing ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
