#!/bin/bash
# Counts the instructions of a request on its whole path, with recording on and off, and in each stage.
# Compares the counts with those stored in crates/blk/counts. `scripts/counts.sh --store` stores them.
#
# The disks file, qcow2-1 and qcow2-10 have the same data in a raw file, in one image, and below nine
# empty images. The disks direct and shared have it in a raw file past the page cache; shared is alone on
# a storage with a scheduler. The disk overlay is written to and has room in memory; all others are read.
# The test `steady` of crates/blk counts its system calls and allocations. A count is the difference of a
# long and a short run, which excludes start and end. It includes the small part of the driver. Reading the time stamp counter counts as one instruction.
set -euo pipefail
cd "$(dirname "$0")/.."

stored=crates/blk/counts
# Percent by which another compiler or code layout may change a count.
tolerance=3
short=2000
long=12000
cargo build --release --quiet -p blk --features stages --example path --example stages
examples="${CARGO_TARGET_DIR:-target}/release/examples"

# Prints the instructions of one run.
run() {
    timeout -s KILL 120 valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null \
        "$examples/path" "$@" 2>&1 | sed -n 's/,//g; s/.*I *refs: *//p'
}

count() {
    local from to
    from=$(run "$@" $short)
    to=$(run "$@" $long)
    echo $(((to - from + (long - short) / 2) / (long - short)))
}

# Prints the instructions of one stage for a number of batches of 32.
run_stage() {
    timeout -s KILL 120 valgrind --tool=callgrind --callgrind-out-file=/dev/null \
        --toggle-collect="stages::${1}_batch" "$examples/stages" "$2" 2>&1 |
        sed -n 's/,//g; s/.*Collected : *//p'
}

count_stage() {
    local from to batches=$(((long - short) / 32))
    from=$(run_stage "$1" 10)
    to=$(run_stage "$1" $((10 + batches)))
    echo $(((to - from + batches * 16) / (batches * 32)))
}

counts=$(
    echo "# disk, depth, recording or stage, instructions a request: made by scripts/counts.sh --store"
    for disk in null memory overlay file qcow2-1 qcow2-10; do
        for depth in 1 32; do
            for record in off on; do
                echo "$disk $depth $record $(count "$disk" "$depth" "$record")"
            done
        done
    done
    for disk in direct shared; do
        echo "$disk 32 off $(count "$disk" 32 off)"
    done
    for stage in pop parse submit complete; do
        echo "null 32 $stage $(count_stage $stage)"
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
            print "counts: " $1 ", depth " $2 ", " $3 ": valgrind counted nothing"
            worse = 1
        }
        if ($4 > was * (1 + tolerance / 100)) {
            print "counts: " $1 ", depth " $2 ", " $3 ": " $4 " instructions, stored count is " was
            worse = 1
        }
    }
    END { exit worse }
' "$stored" <(echo "$counts")
