// What packets add to the bytes of a flow.
#pragma once

#include <cstdint>

namespace netsim {

struct WireFormat {
    std::int64_t mtu_bytes = 0;  // payload of a full packet
    std::int64_t header_bytes = 0;
    std::int64_t ack_bytes = 0;
    std::int64_t packets_per_ack = 1;
};

}  // namespace netsim
