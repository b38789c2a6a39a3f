#!/rdma-vm/bin/sh
# The cable between the two devices, and its faults. Any command in the guest may call this.
#
#   cable down | cable up           cut the cable at eth1, and join it again
#   cable shape loss 1% ...         netem on both ends (loss, delay, reorder, duplicate, corrupt,
#                                   rate); without arguments the cable is whole again
#   cable mtu BYTES                 of both ends; 4200: an RDMA MTU of 4096; 1500: of 1024
#   cable remove N | cable add N    take device N away, as if its card were pulled; put it back
#   cable type rxe|siw              devices of this kind: rxe0 and rxe1, or siw0 and siw1
set -e
KIND=/run/rdma-vm.kind

# By their paths: busybox would take its own lesser `ip`.
ip() {
    /bin/ip "$@"
}
tc() {
    /sbin/tc "$@"
}
rdma() {
    /bin/rdma "$@"
}

kind() {
    if [ -e $KIND ]; then cat $KIND; else echo rxe; fi
}
add() {
    rdma link add "$(kind)$1" type "$(kind)" netdev "eth$1"
}
remove() {
    rdma link delete "$(kind)$1"
}

verb=${1:-help}
[ $# -eq 0 ] || shift
case $verb in
make)
    ip link set lo up
    ip link add eth0 address 02:00:00:00:00:01 mtu 4200 type veth \
        peer name eth1 address 02:00:00:00:00:02 mtu 4200
    for end in 0 1; do
        ip address add "10.77.0.$((end + 1))/24" dev eth$end
        ip link set eth$end up
        add $end
    done
    ;;
type)
    remove 0
    remove 1
    echo "$1" >$KIND
    add 0
    add 1
    ;;
down | up)
    ip link set eth1 "$verb"
    ;;
mtu)
    ip link set eth0 mtu "$1"
    ip link set eth1 mtu "$1"
    ;;
shape)
    for end in 0 1; do
        tc qdisc delete dev eth$end root 2>/dev/null || true
        # netem's own queue of 1000 packets would add losses of its own to a delay.
        [ $# -eq 0 ] || tc qdisc replace dev eth$end root netem limit 100000 "$@"
    done
    ;;
add | remove)
    $verb "$1"
    ;;
*)
    sed -n '/^#   /s/^#   //p' "$0" >&2
    exit 2
    ;;
esac
