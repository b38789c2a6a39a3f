# What `bench/gpu-check` checks. Sourced by it, and again by the shell of each check.

UNAVAILABLE=69

# Name, seconds that are kept for it, limit in seconds, command: cheap and telling ones first. All
# that would be kept fits into one call of ten minutes; what is kept is two thirds of a call at most.
# Whoever adds something that runs on a device adds a line here, and a function if it is longer than
# a command. A check fails by its exit status; 69 means that it cannot be had here, and its last
# line says why. What it appends to $JSON is kept with the record, what it prints too; its last line
# stands in the table.
checks() {
    check doctor                 5  40 doctor
    check kernels               20 100 kernels
    check wall-driver            8  40 device_test brigade-cuda driver time_passes
    check wall-kernels           8  40 needs_compiler device_test brigade-cuda kernels a_kernel_adds
    check wall-processes         8  40 device_test brigade-cuda processes ""
    check limits                20  60 limits
    check bench-latency         20  40 bench_latency
    check bench-bulk            40  80 bench_bulk
    check bench-linked          15  60 bench_linked
    check collectives           45 150 device_test brigade-comm device two_ranks_on_one_device
    check bench-checked         30  90 bench_checked
    check bench-processes       30  90 bench_processes
    check trainer-loss          30  60 trainer_loss
    check offload-transfers     10  40 offload_transfers
    check offload-direct         6  40 offload_direct
    check offload-device        10  40 device_test brigade-offload device ""
    check trainer-products      10  60 trainer_products
    check trainer-offload       40  90 trainer_offload
    check trainer-ranks         30  90 trainer_ranks
    check windows                4  40 windows
    check trainer-groups        15  90 trainer_groups
    check c-device              15  90 c_device
    check nccl-device           25  90 device_test brigade-nccl device threads::
    check trainer-device        20 100 device_test brigade-trainer device operations::
    check trainer-speed         15  60 trainer_speed
    check nccl-cupy             15  60 nccl_cupy
    check sanitizer-wall        15  60 needs_compiler sanitized brigade-cuda kernels ""
    check sanitizer-processes   10  60 sanitized brigade-comm device processes::processes_meet
    check sanitizer-collectives 20 120 sanitized brigade-comm device calls::
}

# ---- what functions below share ----

# sized FULL SMALL: how much, on a device and in a rehearsal.
sized() {
    if [ -n "$REHEARSED" ]; then echo "$2"; else echo "$1"; fi
}

# at_least WHAT NUMBER BAR: print both, and fail below it. A rehearsal has no speed to judge.
at_least() {
    awk -v what="$1" -v number="$2" -v bar="$(sized "$3" 0)" 'BEGIN {
        printf "%s: %.3f (at least %.2f)\n", what, number, bar
        exit !(number != "" && number + 0 >= bar) }'
}

# keep WHAT FRACTION: among the record's numbers.
keep() {
    echo "{\"what\":\"$1\",\"fraction\":$2}" >>"$JSON"
}

lesser() {
    awk -v a="$1" -v b="$2" 'BEGIN { print a + 0 < b + 0 ? a : b }'
}

# near WHAT A B MOST: print two numbers, and fail when they differ by more.
near() {
    awk -v what="$1" -v a="$2" -v b="$3" -v most="$4" 'BEGIN {
        d = a > b ? a - b : b - a
        printf "%s: %s, %s: %.6f apart (at most %s)\n", what, a, b, d, most
        exit !(a != "" && b != "" && d <= most) }'
}

# number NAME: the field of that name in each line of JSON.
number() {
    sed -n "s/.*\"$1\":\([-0-9.e]*\).*/\1/p"
}

# A test program on the device rather than on the fake; a rehearsal runs the tests named by FILTER.
# device_test PACKAGE NAME FILTER
device_test() {
    local program
    program=$(test_program "$1" "$2") || return
    # One after the other, and as it is said: if one hangs, the log ends with its name.
    ran "$program" --test-threads=$(sized 1 2) $(sized --nocapture "$3")
}

# Run tests, at least one of which must pass: a name that no test has is no success.
ran() {
    # Told while it is said: of a program that is ended because it hangs, that is all there is.
    BRIGADE_FAKE_CUDA=off "$@" 2>&1 | tee "$STATE/ran" || return 1
    grep '^test result: ok. [1-9]' "$STATE/ran"
}

# Those of the program for collectives, by themselves.
windows() {
    local program
    program=$(test_program brigade-comm device) || return
    ran "$program" --test-threads=1 --nocapture windows::
}

test_program() {
    local program=$PACKED/tests/$1-$2
    [ -x "$program" ] || { echo "no test program $program" >&2; return $UNAVAILABLE; }
    echo "$program"
}

# What compiles kernels. Where there is a device there must be a compiler: without one nothing that
# this machine's makes is looked at, which is no detail to be skipped.
needs_compiler() {
    [ -n "$HAS_COMPILER" ] ||
        { echo "a device, and no compiler of kernels (NVRTC): let BRIGADE_NVRTC name one"; return 1; }
    "$@"
}

# The losses of a run, one a line.
losses() {
    "$BRIGADE" train --quiet "$@" | sed -n 's/.*loss \([0-9.]*\).*/\1/p'
}

# ---- the wall and the limits ----

doctor() {
    local said
    said=$("$BRIGADE" doctor) || { echo "$said"; return 1; }
    echo "$said"
    grep '^  device 0' <<<"$said"
}

# All kernels, by the compiler that is here, side by side; CI compiles them for other architectures.
# They are kept, or the checks behind this would compile them again, one after the other.
kernels() {
    needs_compiler "$BRIGADE" gpu compile --keep --arch "$ARCH" $(sized "" "--only limits")
}

limits() {
    "$BRIGADE" gpu limits --json "$JSON" $(sized "" --quick) || return
    grep '"what":"copy on the device"' "$JSON" | tail -n 1 | number gb_s |
        awk '{ printf "longest copy on the device, GB/s: %.1f\n", $1 }'
}

# What memory kernels touch beyond their own. Kernels of processes wait for nobody, so they are
# looked at even if the sanitizer lets no kernel begin before another one ends. Errors of calls are
# the tests' to judge, which make some on purpose; and a test that starts ranks touches no device.
SANITIZER_WORDS=10
sanitized() {
    local program
    command -v compute-sanitizer >/dev/null ||
        { echo "no compute-sanitizer here"; return $UNAVAILABLE; }
    program=$(test_program "$1" "$2") || return
    ran compute-sanitizer --tool memcheck --error-exitcode 9 --target-processes all \
        --require-cuda-init no --report-api-errors no "$program" --test-threads=1 \
        $(sized "--nocapture $3" "${3:+two_ranks}")
}

# ---- collectives ----

ALL=all-reduce,reduce-scatter,all-gather,broadcast,reduce,all-to-all,gather,scatter,barrier
ALL=$ALL,send-recv

# Eight bytes, as a call and as the replay of a captured one, beside the least that ranks in threads
# can take: one launch that is waited for, and one more for each further rank.
bench_latency() {
    local ranks graph us floor row waited line worst=9
    # What else it measures is judged elsewhere.
    row=$("$BRIGADE" gpu limits --quick --json /dev/stdout)
    waited=$(grep '"what":"a launch that is waited for"' <<<"$row" | number us)
    row=$(grep '"what":"launches in a row, each"' <<<"$row" | number us)
    [ -n "$waited" ] && [ -n "$row" ] || { echo "no launches were timed: $row"; return 1; }
    for ranks in $(sized "1 2 8" "1 2"); do
        for graph in "" --graph; do
            # Two lines; the first is out of place.
            line=$("$BRIGADE" bench all-reduce -n $ranks --transport cuda -b 8 -e 8 --check \
                --iters "$(sized 500 5)" $graph --json -) || return
            line=${line%%$'\n'*}
            [ "$(number wrong <<<"$line")" = 0 ] || { echo "wrong: $line"; return 1; }
            echo "$line" >>"$JSON"
            us=$(number us_p50 <<<"$line")
            floor=$(awk -v w="$waited" -v r="$row" -v n=$ranks 'BEGIN { print w + (n - 1) * r }')
            worst=$(lesser "$worst" "$(awk -v f="$floor" -v us="$us" 'BEGIN { print f / us }')")
            echo "8 bytes, $ranks ranks${graph:+, replayed}: $us us; launches alone: $floor us"
        done
    done
    keep "the least part that launches alone take of 8 bytes" "$worst"
    at_least "launches alone beside 8 bytes, the least part" "$worst" 0.2
}

# What part of a long call's time the device needs to move its bytes at all: bench says so under
# each table, for the copy of as many bytes that it times beside the calls, both in a row.
bench_bulk() {
    local kinds=all-reduce,reduce-scatter,all-gather ranks bytes said parts part worst=9
    for ranks in $(sized "2 4 8" 2); do
        for bytes in $(sized "64M 256M" 2M); do
            said=$("$BRIGADE" bench $kinds -n $ranks --transport cuda -b $bytes -e $bytes \
                --in-a-row "$(sized 20 2)" --iters 5 --json - 2>&1 >>"$JSON") || { echo "$said"; return 1; }
            echo "$said" | grep 'must move as much'
            parts=$(echo "$said" | awk '/must move as much/ {
                sub(/.*must move as much as .* on the device: /, ""); print $1 / $(NF - 1) }')
            [ "$(wc -w <<<"$parts")" -eq 3 ] || { echo "$said"; return 1; }
            for part in $parts; do worst=$(lesser "$worst" "$part"); done
        done
    done
    keep "the least part of the copy bound" "$worst"
    at_least "the least part of the copy bound at 64 MiB and above" "$worst" 0.85
}

# Ranks that are threads and share the device: every collective, every element.
bench_checked() {
    local ranks failed=0
    for ranks in $(sized "2 4 8" 2); do
        "$BRIGADE" bench $ALL -n $ranks --transport cuda -b 8 -e "$(sized 1M 1K)" -f 128 --check \
            $(sized "" "--iters 1 --warmup 1") --json - >>"$JSON" || failed=1
    done
    wrong && all_ran $failed
}

# The same by schedules, through slots, as processes with devices of their own do it: threads do so
# when an algorithm is named.
bench_linked() {
    local ranks algorithm failed=0
    for ranks in $(sized "2 4" 2); do
        for algorithm in ring halving; do
            "$BRIGADE" bench $ALL -n $ranks --transport cuda --algorithm $algorithm -b 16K \
                -e "$(sized 64M 16K)" -f 64 --check $(sized "" "--iters 1 --warmup 1") \
                --json - >>"$JSON" || failed=1
        done
    done
    wrong && all_ran $failed
}

# Ranks that are processes and share the device, whose hosts meet around each call.
bench_processes() {
    local ranks failed=0
    for ranks in $(sized "2 4 8" 2); do
        "$BRIGADE" run -n $ranks -- "$BRIGADE" bench $ALL --transport cuda -b 8 \
            -e "$(sized 8M 1K)" -f 1024 --check $(sized "--iters 5" "--iters 1") --warmup 1 \
            --json "$JSON.$ranks" || failed=1
        cat "$JSON.$ranks" >>"$JSON" && rm "$JSON.$ranks"
    done
    # Those of owners who keep their buffers.
    "$BRIGADE" run -n 2 -- "$BRIGADE" bench all-reduce --transport cuda --keep-open -b 8 \
        -e "$(sized 8M 1K)" -f 1024 --check $(sized "" "--iters 1 --warmup 1") \
        --json "$JSON.kept" || failed=1
    cat "$JSON.kept" >>"$JSON" && rm "$JSON.kept"
    wrong && all_ran $failed
}

# The last word of several runs, of which some may have failed.
all_ran() {
    [ "$1" = 0 ] || echo "a run failed: see above"
    return "$1"
}

# How many elements were wrong in all that was compared.
wrong() {
    number wrong <"$JSON" | awk '{ wrong += $1 }
        END { printf "%d cases compared, %d elements wrong\n", NR, wrong
              exit !(NR > 0 && !wrong) }'
}

# Programs of C, which the machine's own compiler makes.
c_device() {
    command -v gcc >/dev/null || command -v clang >/dev/null ||
        { echo "no C compiler here"; return $UNAVAILABLE; }
    device_test brigade-ffi device one_rank_needs
}

# CuPy's own binding of NCCL on arrays of the device, by two processes that share it.
nccl_cupy() {
    local python=${CUPY_PYTHON:-python3} rank ranks=() status=0
    "$python" -c "import cupy" 2>/dev/null ||
        { echo "no CuPy here; CUPY_PYTHON names a Python that has it"; return $UNAVAILABLE; }
    test_program brigade-nccl device >/dev/null || return
    mkdir -p "$STATE/nccl" && rm -f "$STATE/nccl/id"
    ffi/nccl/install.sh --libdir "$STATE/nccl" --from "$PACKED/tests" || return
    for rank in 0 1; do
        RANK=$rank WORLD_SIZE=2 ID_FILE=$STATE/nccl/id MEMORY=device \
            LD_PRELOAD=$STATE/nccl/libnccl.so.2${LD_PRELOAD:+:$LD_PRELOAD} \
            "$python" tests/python/cupy_nccl.py &
        ranks+=($!)
    done
    for rank in "${ranks[@]}"; do wait "$rank" || status=1; done
    return $status
}

# ---- the trainer and the offload engine ----

NO_END="--sample 0 --held-out 0"
SMALL="--layers 2 --width 16 --heads 1 --context 8 --batch 2 --steps 2 $NO_END"

# Losses on the device beside the host's: f32 rounds otherwise, bf16 keeps 8 bits.
trainer_loss() {
    local shape host most line how failed=0
    shape=$(sized "--steps 8" "$SMALL")
    host=$(losses $shape) || return
    for how in f32:0.001 bf16:0.02 f16:0.02; do
        line=$(losses $shape --device cuda --precision ${how%:*}) || failed=1
        most=$(paste <(echo "$host") <(echo "$line") | awk '
            { d = $1 > $2 ? $1 - $2 : $2 - $1; if (d > most) most = d; if (NF != 2) bad = 1 }
            END { print bad || NR < 2 ? "" : most + 0 }')
        near "losses by ${how%:*}, host and device, at most" "$most" 0 ${how#*:} || failed=1
    done
    return $failed
}

# That cuBLAS multiplies where there is one, also for ranks that are threads and wait for each other
# in kernels while it loads code. Our own kernels would be right as well, and slow.
trainer_products() {
    local told program
    told=$("$BRIGADE" train $SMALL --device cuda) || { echo "$told"; return 1; }
    grep '^device' <<<"$told"
    if grep -q '^  cuBLAS  *none' "$STATE/doctor"; then
        sed -n 's/^  cuBLAS  *//p' "$STATE/doctor"
        return $UNAVAILABLE
    fi
    grep -q '^device .*products by cuBLAS' <<<"$told" || return
    program=$(test_program brigade-trainer device) || return
    ran "$program" --test-threads=1 --nocapture products_by_cublas
}

# last_loss WHAT ONE FLAGS...: the last loss of this run beside that of one rank.
last_loss() {
    local what=$1 one=$2 loss
    shift 2
    loss=$(losses "$@" | tail -n 1) || { echo "$what: it failed"; return 1; }
    near "last loss, one rank and $what" "$one" "$loss" 0.02
}

# Two ranks on the one device train as one does, with the same units and with other ones.
trainer_ranks() {
    local shape one strategy failed=0
    shape="--device cuda $(sized "--steps 8" "$SMALL")"
    one=$(losses $shape | tail -n 1) || return
    for strategy in $(sized "ddp zero1 zero2 fsdp tp sp ring horovod ps" "ddp fsdp ps"); do
        last_loss "two by $strategy" "$one" $shape --ranks 2 --strategy $strategy || failed=1
    done
    last_loss "two by fsdp in tiles" "$one" $shape --ranks 2 --strategy fsdp --tile 4 || failed=1
    for strategy in $(sized "gpipe 1f1b zb1p" 1f1b); do
        last_loss "a pipeline of two, $strategy" "$one" $shape --ranks 2 --strategy $strategy \
            --micro-batches 2 || failed=1
    done
    shape="$shape --experts 4"
    one=$(losses $shape | tail -n 1) || return
    for strategy in $(sized "ddp fsdp ep" "ep"); do
        last_loss "two with experts by $strategy" "$one" $shape --ranks 2 --strategy $strategy ||
            failed=1
    done
    return $failed
}

# Four ranks on the one device, each in two groups or more: all of their calls are the devices'.
trainer_groups() {
    local shape one four way failed=0
    shape="--device cuda $(sized "--steps 8" "${SMALL/--heads 1/--heads 2}")"
    shape=${shape/--batch 2/--batch 16}
    one=$(losses $shape | tail -n 1) || return
    for way in $(sized "ddp,tp:dp=2,tp=2 fsdp,tp:dp=2,tp=2 fsdp:dp=2,shard=2 ddp,1f1b:dp=2,pp=2 \
        zero1,1f1b:dp=2,pp=2 fsdp,interleaved:dp=2,pp=2 2d:tp=4" \
        "fsdp,tp:dp=2,tp=2 zero1,1f1b:dp=2,pp=2 2d:tp=4"); do
        four=$("$BRIGADE" train $shape --ranks 4 --strategy ${way%:*} --mesh ${way#*:}) ||
            { echo "$four"; failed=1; continue; }
        grep -q '^device .* by the devices' <<<"$four" || { echo "$four"; failed=1; continue; }
        four=$(sed -n 's/^step .*loss \([0-9.]*\).*/\1/p' <<<"$four" | tail -n 1)
        near "last loss, one rank and four by ${way%:*} on ${way#*:}" "$one" "$four" 0.02 ||
            failed=1
    done
    return $failed
}

# A model whose state (0.9 GB) is larger than its part of the device trains as one that fits, with
# moments in an arena, and with all state in a file, and with what goes into blocks there, too.
trainer_offload() {
    local shape all some tier budget failed=0
    shape=$(sized "--layers 8 --width 768 --heads 12 --context 128 --batch 8 --steps 3 $NO_END" \
        "$SMALL")
    budget=$(sized 512M 200K)
    mkdir -p "$STATE/tier"
    all=$(losses $shape --device cuda | tail -n 1) || return
    for tier in cpu "nvme:$STATE/tier"; do
        some=$(losses $shape --device cuda --device-budget $budget --offload "$tier" \
            --offload-activations "$tier" | tail -n 1) || failed=1
        near "last loss, all there and $budget of it by ${tier%%:*}" "$all" "$some" 0.01 || failed=1
    done
    return $failed
}

# What a step takes, in each precision: a number to look at, not to fail by.
trainer_speed() {
    local shape how told
    shape="--layers 12 --width 768 --heads 12 --context 512 --batch 16 --steps 12 $NO_END"
    shape=$(sized "$shape" "$SMALL")
    for how in "--precision f32" "--precision f32 --tf32" "--precision bf16"; do
        told=$("$BRIGADE" train $shape --device cuda $how) || { echo "$told"; return 1; }
        echo "$how: $(grep '^device' <<<"$told")"
        echo "$how: $(grep '^step' <<<"$told" | tail -n 1)"
    done
}

# Buffers of the arena cross at nine tenths of what long pinned copies do, both ways at once too.
offload_transfers() {
    local lines part worst
    lines=$("$BRIGADE" offload bench transfers --bytes "$(sized 16M,64M 1M,2M)" --turns 3 \
        --json -) || return
    echo "$lines" >>"$JSON"
    worst=$(number of_limit <<<"$lines" | sort -g | head -n 1)
    [ "$(number of_limit <<<"$lines" | wc -l)" -eq 6 ] || { echo "$lines"; return 1; }
    at_least "the least part of long pinned copies, up, down and both at once" "$worst" 0.9
}

# Files straight into the device's memory and out of it, beside pinned memory of the host: the parts
# are numbers to look at. DRIVE names a folder on the drive that is meant.
offload_direct() {
    local lines why worst
    lines=$("$BRIGADE" offload bench direct --path "${DRIVE:-$STATE}" --turns 2 \
        $(sized "--bytes 4M,16M --file 128M --least 150" "--bytes 1M --file 4M --least 1") \
        --json -) || return
    echo "$lines" >>"$JSON"
    [ -n "$(number bytes <<<"$lines")" ] || { echo "$lines"; return 1; }
    why=$(sed -n 's/.*"why_not":"\(.*\)"}$/\1/p' <<<"$lines" | head -n 1)
    if [ -n "$why" ]; then
        echo "no GPUDirect Storage here: $why"
        return $UNAVAILABLE
    fi
    worst=$(number ratio <<<"$lines" | sort -g | head -n 1)
    keep "the least ratio of GPUDirect Storage over pinned memory" "$worst"
    echo "GPUDirect Storage over pinned memory, the least: $worst"
}
