# Networks of guests with Soft-RoCE; sourced by the scripts of jobs. Programs are few, as each takes 0.1 s to start.

wait_for_gid() {  # DEVICE: until the address has become its GID 1, that of RoCE v2
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        read -r gid <"/sys/class/infiniband/$1/ports/1/gids/1"
        case "$gid" in *:ffff:*) return 0 ;; esac
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

# Sets `interface` to that of QEMU's NIC of this number.
find_interface() {  # NUMBER
    for path in /sys/class/net/*; do
        read -r mac <"$path/address"
        case "$mac" in 52:54:00:*:"$1") interface="${path##*/}" ;; esac
    done
}

# The way to the host, by QEMU's user network.
control() {
    find_interface 01
    ip -batch - <<-END
	link set lo up
	link set $interface up
	addr add 10.0.2.15/24 dev $interface
	END
}

# Devices rxe0 and rxe1 at the ends of a cable, va (10.77.1.1) and vb (10.77.1.2). Both are in the first network
# namespace, as rxe of Linux 6.1 has its UDP port there only; rules make their packets go over the cable all the same.
two_devices() {
    ip link add va type veth peer name vb
    settings all accept_local=1 rp_filter=0
    settings va accept_local=1 rp_filter=0 arp_ignore=1 arp_announce=2
    settings vb accept_local=1 rp_filter=0 arp_ignore=1 arp_announce=2
    ip -batch - <<-END
	link set va mtu 5000 up
	link set vb mtu 5000 up
	addr add 10.77.1.1/24 dev va
	addr add 10.77.1.2/24 dev vb
	route add 10.77.1.0/24 dev va table 101
	route add 10.77.1.0/24 dev vb table 102
	rule add pref 1 from 10.77.1.1 to 10.77.1.1 lookup local
	rule add pref 2 from 10.77.1.2 to 10.77.1.2 lookup local
	rule add pref 11 iif va lookup local
	rule add pref 12 iif vb lookup local
	rule add pref 21 oif va lookup 101
	rule add pref 22 oif vb lookup 102
	rule add pref 1000 lookup local
	rule del pref 0
	END
    rdma link add rxe0 type rxe netdev va
    rdma link add rxe1 type rxe netdev vb
    wait_for_gid rxe0
    wait_for_gid rxe1
}

# Device rxe2 with this address on the cable to the other guest.
one_device() {  # ADDRESS
    find_interface 02
    ip -batch - <<-END
	link set $interface mtu 4500 up
	addr add $1/24 dev $interface
	END
    rdma link add rxe2 type rxe netdev "$interface"
    wait_for_gid rxe2
}
