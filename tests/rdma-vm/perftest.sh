#!/usr/bin/env bash
# Brigade against perftest over the same two devices, in turns. Run it in the virtual machine, or on
# a machine with devices of its own:
#
#   tests/rdma-vm/rdma-vm run -- tests/rdma-vm/perftest.sh BRIGADE EXAMPLE [--judge] [ROUNDS]
#
# BRIGADE is the command, EXAMPLE the example program `perftest` of brigade-transports. The medians
# of ROUNDS rounds (9) are printed with their ratios. With --judge it fails where a wire moves less
# than 0.9 of what perftest moves, or a short message takes more than 1.3 times as long: to be asked
# of a quiet machine only. The command's own row also pays for calls that are waited for one by one.
#
# FROM, TO and ADDRESS name the devices and the second one's address, GID the row of their tables.
set -euo pipefail

BRIGADE=$1
EXAMPLE=$2
shift 2
JUDGE=
if [ "${1:-}" = --judge ]; then
    JUDGE=1
    shift
fi
ROUNDS=${1:-9}
FROM=${FROM:-rxe0}
TO=${TO:-rxe1}
ADDRESS=${ADDRESS:-10.77.0.2}
GID=${GID:-1}
BULK_LEAST=0.9
LATENCY_MOST=1.3
export BRIGADE_RDMA_DEVICES=$FROM,$TO
# As perftest: one queue pair each way.
export BRIGADE_RDMA_QUEUE_PAIRS=1

LOG=$(mktemp -d)
trap 'rm -rf "$LOG"' EXIT

# perftest PROGRAM OPTIONS...: what the client prints.
perftest() {
    local program=$1 server
    shift
    "$program" -d "$TO" -x "$GID" -F "$@" >"$LOG/server" 2>&1 &
    server=$!
    for _ in $(seq 50); do
        sleep 0.1
        if "$program" -d "$FROM" -x "$GID" -F "$@" "$ADDRESS" >"$LOG/client" 2>&1; then
            wait "$server"
            cat "$LOG/client"
            return
        fi
        kill -0 "$server" 2>/dev/null || break
    done
    cat "$LOG/server" "$LOG/client" >&2
    return 1
}

# GB/s; perftest counts gigabits.
write_bw() {
    local bytes=$1
    shift
    perftest ib_write_bw -s "$bytes" --report_gbits "$@" |
        awk -v bytes="$bytes" '$1 == bytes { print $4 / 8; found = 1 } END { exit !found }'
}
# Microseconds of one way.
write_lat() {
    perftest ib_write_lat -s 8 -n 1000 |
        awk '$1 == 8 { print $5; found = 1 } END { exit !found }'
}
# GB/s of both directions together.
send_recv() {
    "$BRIGADE" bench send-recv -n 2 --transport rdma -b "$1" -e "$1" --iters "$2" --warmup 2 \
        --json - | sed -n 's/.*"algbw": *\([0-9.e-]*\).*/\1/p' | awk 'NR == 1 { print 2 * $1 }'
}
median() {
    sort -g "$1" | awk '{ row[NR] = $1 } END { print row[int((NR + 1) / 2)] }'
}

for round in $(seq "$ROUNDS"); do
    echo "round $round of $ROUNDS" >&2
    write_lat >>"$LOG/lat.theirs"
    "$EXAMPLE" latency 8 1000 >>"$LOG/lat.ours"
    for bytes in 65536 1048576; do
        messages=$((33554432 / bytes))
        write_bw $bytes -n $messages >>"$LOG/one-way.$bytes.theirs"
        "$EXAMPLE" bandwidth $bytes $messages >>"$LOG/one-way.$bytes.ours"
        write_bw $bytes -n 100 -b >>"$LOG/both-ways.$bytes.theirs"
        send_recv $bytes $((messages < 64 ? messages : 64)) >>"$LOG/both-ways.$bytes.ours"
    done
done

FAILED=
# row NAME UNIT FILES BOUND: BOUND is empty, or a condition on the ratio r for awk.
row() {
    local theirs ours verdict=
    theirs=$(median "$LOG/$3.theirs")
    ours=$(median "$LOG/$3.ours")
    if [ -n "$4" ]; then
        verdict=$(awk "BEGIN { r = $ours / $theirs; print ($4) ? \"ok\" : \"missed\" }")
        [ "$verdict" = ok ] || FAILED=1
    fi
    printf '%-36s %9.4f %9.4f %-5s %6.2f  %s %s\n' "$1" "$theirs" "$ours" "$2" \
        "$(awk "BEGIN { print $ours / $theirs }")" "$4" "$verdict"
}
printf '%-36s %9s %9s %-5s %6s\n' "median of $ROUNDS" perftest brigade unit ratio
row "8 bytes, one way" us lat "r <= $LATENCY_MOST"
for bytes in 65536 1048576; do
    row "$bytes bytes, a stream one way" GB/s one-way.$bytes "r >= $BULK_LEAST"
done
for bytes in 65536 1048576; do
    row "$bytes bytes, both ways, calls" GB/s both-ways.$bytes ""
done
if [ -n "$JUDGE" ] && [ -n "$FAILED" ]; then
    echo "a bound was missed"
    exit 1
fi
