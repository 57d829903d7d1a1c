// Numbers of the RoCE model; netsim.roce documents each of them with its source and computes the per-link ones.
#pragma once

#include <cstdint>
#include <netsim/types.hpp>
#include <vector>

#include "roce/congestion/parameters.hpp"
#include "wire_format.hpp"

namespace netsim::roce {

inline constexpr int kPriorities = 8;
inline constexpr std::uint8_t kControlPriority = 0;  // strictly first, never paused, never marked

enum class LoadBalancing : std::uint8_t { ecmp, flowlet, adaptive };
enum class Recovery : std::uint8_t { go_back_n, selective_repeat };

// RED marking of one link's output queues. A queue of more than kmax is marked always, of kmin or less never.
struct RedThresholds {
    std::int64_t kmin_bytes = 0;
    std::int64_t kmax_bytes = 0;
    double pmax = 0;
};

struct Parameters {
    WireFormat wire;
    std::int64_t cell_packets = 1;  // packets that travel as one unit
    std::int64_t pfc_frame_bytes = 0;
    // Network interface
    TransportSettings transport{SendWindow::fixed, false};
    Recovery recovery = Recovery::go_back_n;
    TimePs retransmission_timeout_ps = 0;
    TimePs nack_interval_ps = 0;
    int max_retries = 0;
    CongestionParameters congestion;
    // Switches
    std::int64_t switch_buffer_bytes = 0;
    std::int64_t reserve_bytes = 0;        // per (input, priority)
    std::int64_t resume_offset_bytes = 0;  // a pause ends this much below the threshold
    bool has_pfc = true;
    std::vector<std::int64_t> headroom_bytes;   // [links] at the link's far end
    std::vector<std::uint8_t> threshold_shift;  // [links] a queue may take the free shared memory / 2^shift
    std::vector<RedThresholds> red;             // [links] empty: no ECN
    std::vector<std::int64_t> credit_bytes;     // [links] input buffer of the NVSwitch at the far end; 0: no credits
    // Routing
    LoadBalancing load_balancing = LoadBalancing::ecmp;
    TimePs flowlet_gap_ps = 0;
    TimePs reroute_delay_ps = 0;
    std::uint64_t seed = 0;     // of RED
    double skip_tolerance = 0;  // relative error of a flow's time that skipping may cause; 0: nothing is skipped
};

}  // namespace netsim::roce
