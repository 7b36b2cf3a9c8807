#!/bin/bash
# Counts the instructions of a request on its path, with recording on and off, and compares them
# with those on record in crates/blk/counts. `scripts/counts.sh --store` puts them on record.
#
# The difference of a long and a short run, so that nothing of a start or an end is in it. The
# driver's part, which is small, is. The time stamp counter counts as one instruction.
set -euo pipefail
cd "$(dirname "$0")/.."

stored=crates/blk/counts
# Percent: what another compiler, or another layout of the same code, may change.
tolerance=3
short=2000
long=12000
cargo build --release --quiet -p blk --example path
path="${CARGO_TARGET_DIR:-target}/release/examples/path"

# Instructions of one run.
run() {
    timeout -s KILL 120 valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null \
        "$path" "$@" 2>&1 | sed -n 's/,//g; s/.*I *refs: *//p'
}

count() {
    local from to
    from=$(run "$@" $short)
    to=$(run "$@" $long)
    echo $(((to - from + (long - short) / 2) / (long - short)))
}

counts=$(
    echo "# disk, depth, recording, instructions a request: made by scripts/counts.sh --store"
    for disk in null memory; do
        for depth in 1 32; do
            for record in off on; do
                echo "$disk $depth $record $(count "$disk" "$depth" "$record")"
            done
        done
    done
)
echo "$counts"
if [[ ${1:-} == --store ]]; then
    echo "$counts" >"$stored"
    exit 0
fi
awk -v tolerance=$tolerance '
    /^#/ { next }
    NR == FNR { before[$1, $2, $3] = $4; next }
    {
        was = before[$1, $2, $3]
        if ($4 + 0 < 1) {
            print "counts: " $1 ", depth " $2 ", recording " $3 ": valgrind counted nothing"
            worse = 1
        }
        if ($4 > was * (1 + tolerance / 100)) {
            print "counts: " $1 ", depth " $2 ", recording " $3 ": " $4 " instructions, on record are " was
            worse = 1
        }
    }
    END { exit worse }
' "$stored" <(echo "$counts")
