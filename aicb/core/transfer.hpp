// Scaling of a measured time to another GPU (aicb/estimators/transfer_reference.py).
#pragma once

#include <algorithm>
#include <cmath>

namespace aicb {

// What a kernel takes on a GPU: of its SMs (latency and arithmetic), and of memory, each at the rate that is reached.
struct TransferParts {
    double own_us;
    double memory_us;
};

// The part of a time that memory explains follows the bandwidth, the rest what the SMs take.
inline double transferred_us(double found_us, const TransferParts& origin, const TransferParts& target) {
    const double explained_us = std::max(found_us, origin.memory_us);
    const double rest_us = std::sqrt((explained_us - origin.memory_us) * (explained_us + origin.memory_us));
    return found_us / explained_us * std::hypot(rest_us * (target.own_us / origin.own_us), target.memory_us);
}

}  // namespace aicb
