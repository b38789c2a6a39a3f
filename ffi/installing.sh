# What the scripts that install a library have in common; they source this, from the folder $ffi.

root=$(cd "$ffi/.." && pwd -P)

# take_flags FLAGS "$@": each flag of FLAGS, such as --libdir, sets the variable of its name. The
# script has said its `usage`.
take_flags() {
    known=" $1 "
    shift
    while [ $# -gt 0 ]; do
        case "$known" in
            *" $1 "*) ;;
            *) usage; [ "$1" = --help ] && exit 0 || exit 2 ;;
        esac
        if [ -z "${2:-}" ]; then
            echo "$0: $1 needs a value" >&2
            usage >&2
            exit 2
        fi
        eval "${1#--}=\$2"
        shift 2
    done
}

# absolute PATH: paths are those of whoever calls.
absolute() {
    case "$1" in
        '' | /*) echo "$1" ;;
        *) echo "$PWD/$1" ;;
    esac
}

# build PACKAGE: the library for this machine; sets $from. The command is named, too, as what both
# are made of is then the same, and is not compiled once for each.
build() {
    (cd "$root" && cargo build --release --lib -p brigade -p "$1") || exit
    from=${CARGO_TARGET_DIR:-target}/release
    case "$from" in /*) ;; *) from=$root/$from ;; esac
}

# put FILE TARGET: a shared library, without what only debuggers read, six times as much as the
# rest; the names that it exports stay.
put() {
    install -m 755 "$1" "$2"
    strip --strip-unneeded "$2" || echo "$0: $2 keeps what debuggers read" >&2
}

# megabytes FILE
megabytes() {
    bytes=$(wc -c < "$1")
    echo "$((bytes / 1000000)).$((bytes / 100000 % 10)) MB"
}
