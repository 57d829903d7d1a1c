// Contact of engine `verbs`: what a rank tells another before they connect, over the control connections.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <vector>

namespace netsim::rdma {

// What a peer has to know of a queue pair.
struct QueuePairAddress {
    std::uint32_t number = 0, packet_sequence = 0;
};

// What a peer has to know of the port of its queue pairs, and of the memory that it may write to.
struct PortAddress {
    std::uint16_t lid = 0;
    ibv_gid gid{};
    ibv_mtu mtu = IBV_MTU_256;  // active
    std::uint64_t arena = 0;    // address
    std::int64_t arena_bytes = 0;
    std::uint32_t arena_key = 0;
};

// What a rank tells another: its port, and the queue pairs that it sends to it from and receives from it at.
struct VerbsContact {
    PortAddress port;
    std::vector<QueuePairAddress> senders, receivers;

    std::string as_text() const;
    // Throws EngineError.
    static VerbsContact from_text(const std::string& text);
};

inline constexpr int bytes_of(ibv_mtu mtu) { return 128 << mtu; }
inline constexpr ibv_mtu mtu_of(int bytes) {
    int mtu = IBV_MTU_256;
    while (mtu < IBV_MTU_4096 && bytes_of(static_cast<ibv_mtu>(mtu)) < bytes) ++mtu;
    return static_cast<ibv_mtu>(mtu);
}

}  // namespace netsim::rdma
