# The demo, seen from inside the guest. Run by its init with `sh`; the host fills in what is between at signs.
# Every line that begins with "ringway-demo:" is for the host: `step TEXT`, `sha256 NAME HASH`.
set -eu

step() { echo "ringway-demo: step $*"; }
sum() { sha256sum "$1" | cut -d' ' -f1; }
tell() { echo "ringway-demo: sha256 $1 $2"; }
fail() { echo "ringway-demo: failed $*"; exit 1; }

# load NAME FILE [FIO OPTIONS]: fio on FILE; its report is shown only if it fails.
load() {
    name=$1 file=$2
    shift 2
    fio --name="$name" --filename="$file" --ioengine=libaio --direct=1 --iodepth=16 \
        --group_reporting --eta=never --output=/run/fio.log "$@" && return
    cat /run/fio.log
    fail "fio on $name"
}

# Writes in mixed sizes, then reads everything back and checks the CRC of each block.
verify() { load "$@" --rw=randwrite --bsrange=4k-64k --bs_unaligned=0 \
    --verify=crc32c --verify_fatal=1 --do_verify=1; }

# writes FILE: how many writes to it have ended. How many are under way may be none whenever one looks.
writes() {
    read -r _ _ _ _ ended _ <"/sys/block/${1#/dev/}/stat"
    echo "$ended"
}

# strike FILE: waits for the first hundred of some thousand writes to FILE, then tells the host, which kills
# the worker.
strike() {
    first=$(writes "$1")
    until [ "$(writes "$1")" -ge $((first + 100)) ]; do
        sleep 0.02
    done
    echo "ringway-demo: strike"
}

data=$(disk @DATA@) multi=$(disk @MULTI@) golden=$(disk @GOLDEN@)
head -c 8388608 /dev/urandom >/run/random
random=$(sum /run/random)
tell random "$random"

step "data: format, mount, write, fio, unmount, check the file system"
/usr/sbin/mkfs.ext4 -q -F "$data"
mkdir -p /mnt
mount -t ext4 "$data" /mnt
cp /run/random /mnt/random
dd if="$golden" of=/mnt/golden bs=1M 2>/dev/null
(cd /mnt && sha256sum random golden >sums)
verify data /mnt/fio --size=16M
rm /mnt/fio
umount /mnt
/usr/sbin/fsck.ext4 -f -n "$data" >/run/fsck.log 2>&1 || { cat /run/fsck.log; fail "fsck"; }
mount -t ext4 -o ro "$data" /mnt
(cd /mnt && sha256sum -s -c sums) || fail "the files on data changed"
umount /mnt

queues=$(ls "/sys/block/${multi#/dev/}/mq" | wc -l)
step "multi: write and verify on $queues queues, and lose the process that serves them"
dd if=/run/random of="$multi" bs=1M seek=@MULTI_MIB@ oflag=direct 2>/dev/null
strike "$multi" &
verify multi "$multi" --offset=64M --offset_increment=32M --size=16M --numjobs=2 \
    --output-format=terse
wait
# The longest read and the longest write, in microseconds.
echo "ringway-demo: longest $(grep '^3;' /run/fio.log | cut -d';' -f15,56 | tr ';' ' ')"
dmesg | grep 'I/O error' && fail "the kernel saw an I/O error"
dd if="$multi" of=/run/back bs=1M skip=@MULTI_MIB@ count=8 iflag=direct 2>/dev/null
[ "$(sum /run/back)" = "$random" ] || fail "multi gave back other bytes"

step "late: get another disk, write, read back, fio"
echo "ringway-demo: plug"
# Whoever is busy takes longer than one wait.
late=$(disk @LATE@ || disk @LATE@ || disk @LATE@) 2>/run/disk.log || fail "no other disk came"
dd if=/run/random of="$late" bs=1M oflag=direct 2>/dev/null
verify late "$late" --offset=16M --size=16M
dd if="$late" of=/run/back bs=1M count=8 iflag=direct 2>/dev/null
[ "$(sum /run/back)" = "$random" ] || fail "late gave back other bytes"

step "golden: read, compare, try to write, fio"
[ "$(sum "$golden")" = @GOLDEN_SHA256@ ] || fail "golden gave other bytes"
if dd if=/run/random of="$golden" bs=4k count=1 2>/dev/null; then fail "golden was written"; fi
load golden "$golden" --rw=randread --bs=4k --size=16M --readonly
step "done"
