// Time of two half batches that take turns in compute and communication (aicb/iteration/overlap.py).
#pragma once

#include <algorithm>
#include <vector>

namespace aicb {

// Compute of one half while the other communicates.
struct OverlapSegment {
    double compute_ps;
    double communication_ps;  // on an idle fabric
    double share;             // of the iteration's time that the segment stands for
};

// The longer of compute and communication in every segment, and what no communication overlaps; communication takes
// `slowdown` times as long as on an idle fabric.
inline double overlapped_ps(double not_overlapped_ps, const std::vector<OverlapSegment>& segments, double slowdown) {
    double lasting_ps = not_overlapped_ps;
    for (const OverlapSegment& segment : segments) {
        lasting_ps += segment.share * std::max(segment.compute_ps, segment.communication_ps * slowdown);
    }
    return lasting_ps;
}

}  // namespace aicb
