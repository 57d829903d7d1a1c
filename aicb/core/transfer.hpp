// Scaling of a measured time to another GPU (aicb/estimators/transfer_reference.py).
#pragma once

#include <algorithm>
#include <cmath>

namespace aicb {

// What a kernel takes on a GPU: latency, and arithmetic and memory at the rates that are reached.
struct TransferParts {
    double latency_us;
    double compute_us;
    double memory_us;

    double total_us() const { return latency_us + std::hypot(compute_us, memory_us); }
};

// The part of a time that memory explains follows the bandwidth; latency and arithmetic, which take κ times as long as
// `origin` says where κ·latency + √((κ·compute)² + memory²) is the time found, follow the SMs. At most the utilisation
// of the whole is kept.
inline double transferred_us(double found_us, const TransferParts& origin, const TransferParts& target) {
    const double explained_us = std::max(found_us, origin.memory_us);
    const double rest = (explained_us - origin.memory_us) * (explained_us + origin.memory_us);
    const double root = std::hypot(origin.compute_us * std::sqrt(rest), origin.latency_us * origin.memory_us);
    const double kappa = rest / (origin.latency_us * explained_us + root);
    const double busy_us = std::hypot(kappa * target.compute_us, target.memory_us);
    const double by_parts_us = found_us / explained_us * (kappa * target.latency_us + busy_us);
    return std::min(by_parts_us, found_us * (target.total_us() / origin.total_us()));
}

}  // namespace aicb
