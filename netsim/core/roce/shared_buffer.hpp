// Memory of a shared-buffer switch: dynamic thresholds, headroom and when to pause (as in HPCC's ns-3 switch, MMU).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "network.hpp"
#include "parameters.hpp"

namespace netsim::roce {

// Accounts packets to the (input link, priority) by which they came, from arrival to the start of their transmission.
// A queue first fills its reserve, then shares what no reserve or headroom takes up to a threshold that shrinks as
// the memory fills, then its headroom. It pauses its sender from the threshold on, and drops only when headroom is
// full.
class SharedBuffers {
  public:
    SharedBuffers(const Network& network, const Parameters& parameters)
        : parameters_(parameters),
          usage_(network.link_count() * kPriorities),
          pausing_(network.link_count()),
          switch_of_(network.link_count()),
          free_shared_(network.node_count()) {
        for (LinkId link = 0; link < network.link_count(); ++link) {
            switch_of_[link] = network.link(link).dst;
        }
        for (NodeId node = 0; node < network.node_count(); ++node) {
            free_shared_[node] = parameters.switch_buffer_bytes;
            for (const LinkId link : network.in_links(node)) {
                free_shared_[node] -= parameters.headroom_bytes[link] + parameters.reserve_bytes;
            }
        }
    }

    // False: no room, the packet has to be dropped.
    bool admit(LinkId input, std::uint8_t priority, std::int64_t bytes) {
        Usage& usage = usage_[input * kPriorities + priority];
        std::int64_t& free_shared = free_shared_[switch_of_[input]];
        const std::int64_t beyond_reserve = usage.ingress + bytes - parameters_.reserve_bytes;
        if (beyond_reserve <= 0) {
            usage.ingress += bytes;
            return true;
        }
        if (beyond_reserve > threshold(input)) {
            if (usage.headroom + bytes > parameters_.headroom_bytes[input]) return false;
            usage.headroom += bytes;
            return true;
        }
        usage.ingress += bytes;
        free_shared -= std::min(bytes, beyond_reserve);
        return true;
    }

    // The packet leaves: first what it had in the headroom is freed.
    void release(LinkId input, std::uint8_t priority, std::int64_t bytes) {
        Usage& usage = usage_[input * kPriorities + priority];
        const std::int64_t from_headroom = std::min(usage.headroom, bytes);
        usage.headroom -= from_headroom;
        const std::int64_t rest = bytes - from_headroom;
        free_shared_[switch_of_[input]] += std::min(rest, shared(usage));
        usage.ingress -= rest;
    }

    // The queue has to pause its sender now; true once per pause.
    bool starts_pause(LinkId input, std::uint8_t priority) {
        const Usage& usage = usage_[input * kPriorities + priority];
        if (is_pausing(input, priority)) return false;
        if (usage.headroom == 0 && shared(usage) < threshold(input)) return false;
        pausing_[input] |= static_cast<std::uint8_t>(1U << priority);
        return true;
    }

    // The queue may let its sender go on; true once per pause.
    bool ends_pause(LinkId input, std::uint8_t priority) {
        const Usage& usage = usage_[input * kPriorities + priority];
        if (!is_pausing(input, priority) || usage.headroom > 0) return false;
        const std::int64_t used = shared(usage);
        if (used > 0 && used + parameters_.resume_offset_bytes > threshold(input)) return false;
        pausing_[input] &= static_cast<std::uint8_t>(~(1U << priority));
        return true;
    }

    bool is_pausing(LinkId input, std::uint8_t priority) const { return (pausing_[input] >> priority) & 1U; }
    // All senders forget their pauses, as when a link went down.
    void forget_pauses(LinkId input) { pausing_[input] = 0; }

  private:
    struct Usage {
        std::int64_t ingress = 0;  // reserve and shared memory
        std::int64_t headroom = 0;
    };

    std::int64_t threshold(LinkId input) const {
        return std::max<std::int64_t>(0, free_shared_[switch_of_[input]]) >> parameters_.threshold_shift[input];
    }
    std::int64_t shared(const Usage& usage) const {
        return std::max<std::int64_t>(0, usage.ingress - parameters_.reserve_bytes);
    }

    const Parameters& parameters_;
    std::vector<Usage> usage_;               // [link * kPriorities + priority]
    std::vector<std::uint8_t> pausing_;      // [link] bit per priority
    std::vector<NodeId> switch_of_;          // [link]
    std::vector<std::int64_t> free_shared_;  // [node] of memory that no reserve or headroom takes
};

}  // namespace netsim::roce
