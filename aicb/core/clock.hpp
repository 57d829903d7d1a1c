// The SM clock under load, and what of a kernel's time follows it (aicb/measurements/clock.py).
#pragma once

#include <algorithm>

namespace aicb {

// SM clock against the tensor cores' share of their nominal peak: linear between a light and a heavy share.
struct ClockLaw {
    double reference_mhz, light_mhz, heavy_mhz;
    double light_share, heavy_share;

    double mhz(double tensor_share) const {
        if (tensor_share >= heavy_share) return heavy_mhz;
        if (tensor_share <= light_share) return light_mhz;
        return (heavy_mhz - light_mhz) / (heavy_share - light_share) * (tensor_share - light_share) + light_mhz;
    }
    // By how much what follows the clock takes longer than at the reference.
    double slowdown(double tensor_share) const { return reference_mhz / mhz(tensor_share); }
};

// PricedOperators of a kernel's time that follows the clock: 1 where the SMs bound it, 0 where reading memory does.
inline double clocked_share(double time_us, double memory_us) {
    if (!(time_us > 0.0)) return 0.0;
    const double by_memory = std::min(memory_us / time_us, 1.0);
    return 1.0 - by_memory * by_memory;
}

}  // namespace aicb
