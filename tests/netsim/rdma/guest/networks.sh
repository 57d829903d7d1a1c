# Networks of guests with Soft-RoCE; sourced by the scripts of jobs.

wait_for_gid() {  # DEVICE: until the address has become its GID 1, that of RoCE v2
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        grep -q ":ffff:" "/sys/class/infiniband/$1/ports/1/gids/1" && return 0
        sleep 0.1
    done
    echo "$1: no GID of an IPv4 address" >&2
    return 1
}

settings() {  # INTERFACE NAME=VALUE...
    interface="$1"
    shift
    for setting in "$@"; do echo "${setting#*=}" >"/proc/sys/net/ipv4/conf/$interface/${setting%=*}"; done
}

# The interface of QEMU's NIC of this number.
interface_of() {  # NUMBER
    for path in /sys/class/net/*; do
        case "$(cat "$path/address")" in 52:54:00:*:"$1") echo "${path##*/}" ;; esac
    done
}

# The way to the host, by QEMU's user network.
control() {
    ip link set lo up
    interface="$(interface_of 01)"
    ip link set "$interface" up
    ip addr add 10.0.2.15/24 dev "$interface"
}

# Devices rxe0 and rxe1 at the ends of a cable, va (10.77.1.1) and vb (10.77.1.2). Both are in the first network
# namespace, as rxe of Linux 6.1 has its UDP port there only; rules make their packets go over the cable all the same.
two_devices() {
    ip link add va type veth peer name vb
    settings all accept_local=1 rp_filter=0
    end=1
    for interface in va vb; do
        settings "$interface" accept_local=1 rp_filter=0 arp_ignore=1 arp_announce=2
        ip link set "$interface" mtu 5000 up
        ip addr add "10.77.1.$end/24" dev "$interface"
        ip route add 10.77.1.0/24 dev "$interface" table "10$end"
        ip rule add pref "$end" from "10.77.1.$end" to "10.77.1.$end" lookup local
        ip rule add pref "1$end" iif "$interface" lookup local
        ip rule add pref "2$end" oif "$interface" lookup "10$end"
        end=$((end + 1))
    done
    ip rule add pref 1000 lookup local
    ip rule del pref 0
    rdma link add rxe0 type rxe netdev va
    rdma link add rxe1 type rxe netdev vb
    wait_for_gid rxe0
    wait_for_gid rxe1
}

# Device rxe0 with this address on the cable to the other guest.
one_device() {  # ADDRESS
    interface="$(interface_of 02)"
    ip link set "$interface" mtu 4500 up
    ip addr add "$1/24" dev "$interface"
    rdma link add rxe0 type rxe netdev "$interface"
    wait_for_gid rxe0
}
