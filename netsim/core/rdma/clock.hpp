// The clock of all stamps: nobody adjusts it, and all processes of a host share it.
#pragma once

#include <time.h>

#include "rank_plan.hpp"

namespace netsim::rdma {

inline Nanoseconds now_ns() {
    timespec at{};
    clock_gettime(CLOCK_MONOTONIC_RAW, &at);
    return static_cast<Nanoseconds>(at.tv_sec) * 1'000'000'000 + at.tv_nsec;
}

}  // namespace netsim::rdma
