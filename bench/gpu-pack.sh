# What `bench/gpu-check` runs: built, and collected in a folder. Sourced by it.

# Package and name of the test programs that run on a device when BRIGADE_FAKE_CUDA is off.
DEVICE_TESTS="brigade-cuda:driver brigade-cuda:kernels brigade-cuda:processes brigade-comm:device
brigade-trainer:device brigade-offload:device brigade-ffi:device brigade-nccl:device"
# What may travel to such a machine in all, with what git tracks.
CARRIED_MIB_MAX=60
TARGET=${CARGO_TARGET_DIR:-target}

# collect FOLDER COMMAND: the command and the test programs, each put there by `COMMAND FILE
# PLACE`. Everything is built as .ci/run builds it, so that nothing is built twice.
collect() {
    local folder=$1 put=$2 test package name built file names=()
    mkdir -p "$folder/tests" || return
    echo "building" >&2
    cargo build --release -p brigade -p brigade-ffi -p brigade-comm --lib --bins --quiet || return
    $put "$(realpath "$TARGET/release/brigade")" "$folder/brigade" || return
    for test in $DEVICE_TESTS; do
        names+=(--test "${test##*:}")
    done
    built=$(cargo test --workspace "${names[@]}" --no-run --quiet --message-format=json) || return
    for test in $DEVICE_TESTS; do
        package=${test%%:*}
        name=${test##*:}
        file=$(grep "#$package@[^\"]*\".*\"name\":\"$name\"" <<<"$built" |
            sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
        [ -x "$file" ] || { echo "cargo tells no test program $name of $package"; return 1; }
        $put "$file" "$folder/tests/$package-$name" || return
    done
    # Loaded from beside the tests that need them.
    file=$(dirname "$file")
    $put "$file/libbrigade_nccl.so" "$folder/tests/" || return
    $put "$(realpath "$TARGET/release/libbrigade.so")" "$folder/tests/" || return
    git describe --always --dirty --exclude '*' >"$folder/commit" 2>/dev/null ||
        echo unknown >"$folder/commit"
}

# Built programs and compiled kernels for a machine that has neither cargo nor a compiler. Where they
# are, FOLDER/brigade is what gpu-check is told.
pack() {
    local folder=$1 arch bytes compiler compilers
    mkdir -p "$folder" && rm -rf "$folder/tests" "$folder/kernels" || return
    # Those of the last time: what has not changed is not compiled again.
    [ ! -f "$folder/kernels.tgz" ] || tar -C "$folder" -xzf "$folder/kernels.tgz" || return
    collect "$folder" "install -m 755" || return
    strip "$folder/brigade" "$folder"/tests/* || return
    # CI keeps two there: a machine with a compiler looks for what its own version made, and an older
    # driver may refuse what a newer one did.
    compilers=("${BRIGADE_NVRTC:-}")
    [ -n "${BRIGADE_NVRTC:-}" ] || [ ! -d "$TARGET/nvrtc/12" ] || compilers=("$TARGET"/nvrtc/[0-9]*)
    for compiler in "${compilers[@]}"; do
        for arch in ${ARCHES:-sm_80 sm_90 sm_100}; do
            BRIGADE_NVRTC=$compiler BRIGADE_CACHE=$folder "$folder/brigade" gpu compile --keep \
                --arch $arch | sed -n '1s/ of .*//p; $p' | paste -sd' '
        done
    done
    if [ ! -d "$folder/kernels" ]; then
        echo "no kernel was compiled: BRIGADE_NVRTC names a compiler, or put one where CI has it:"
        echo "python3 -m pip install --no-deps --target $TARGET/nvrtc/13 'nvidia-cuda-nvrtc==13.0.*'"
        return 1
    fi
    # Compressed, a quarter of it.
    tar -C "$folder" -czf "$folder/kernels.tgz" kernels && rm -r "$folder/kernels" || return
    echo "newest glibc that is asked for: $(newest_glibc "$folder"/brigade "$folder"/tests/*)"
    # A third of what they are; gpu-check unpacks them.
    tar -C "$folder" -czf "$folder/programs.tgz" brigade tests || return
    rm -r "$folder/brigade" "$folder/tests" || return
    bytes=$(cd "$folder" && find . -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum }')
    bytes=$((bytes + $(git ls-files -z | xargs -0 cat | wc -c)))
    echo "$folder: $(du -sh "$folder" | cut -f1), $((bytes >> 20)) MiB with what git tracks"
    if [ $((bytes >> 20)) -ge $CARRIED_MIB_MAX ]; then
        echo "that is more than the $CARRIED_MIB_MAX MiB that can be carried"
        return 1
    fi
}

newest_glibc() {
    objdump -T "$@" | sed -n 's/.*(GLIBC_\([0-9.]*\)).*/\1/p' | sort -uV | tail -n 1
}
