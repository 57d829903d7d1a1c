// Bytes on links over time, by what they are, in a bounded number of windows of equal width.
#pragma once

#include <array>
#include <netsim/types.hpp>
#include <vector>

namespace netsim {

// Kinds of traffic that logs and counters tell apart (netsim.flow.FlowGraph.traffic).
constexpr std::size_t kTrafficKinds = 2;
using Traffic = std::uint8_t;

// Rows of a table: bytes of one kind on one link in one window.
struct CarriedRows {
    std::vector<std::uint8_t> traffic;
    std::vector<std::int64_t> window, link;
    std::vector<double> carried_bytes;
};

// Accumulates what links carry; windows double in width when time outgrows them. Only links that carry something, and
// windows in which something is carried, take memory.
class LinkLog {
  public:
    // An odd number of windows becomes the next even one; they have a width of `window_ps` at first.
    LinkLog(std::size_t links, std::int64_t windows, TimePs window_ps);

    TimePs window_ps() const { return window_ps_; }
    // End of the window that an instant lies in, or begins.
    TimePs window_end_ps(TimePs at_ps) const { return later(at_ps / window_ps_ * window_ps_, window_ps_); }
    // Adds bytes of a time that begins at `from_ps` and does not go beyond the end of that window.
    void add(Traffic traffic, LinkId link, double bytes, TimePs from_ps);
    // Adds bytes on distinct links, `times` times, evenly spread from start to end; without duration they fall into the
    // window of their instant.
    void spread(Traffic traffic, const std::vector<std::int64_t>& links, const std::vector<double>& link_bytes,
                TimePs start_ps, TimePs end_ps, double times = 1.0);
    // [links]
    std::vector<double> total_bytes(Traffic traffic) const;
    // Every (traffic, window, link) that carried something.
    CarriedRows rows() const;

  private:
    using Columns = std::vector<double>;  // [touched links]

    double& at(Columns& columns, std::size_t link);
    Columns& columns_at(Traffic traffic, TimePs at_ps);
    void widen();

    std::int64_t windows_;
    TimePs window_ps_;
    std::vector<std::int32_t> column_of_;                      // [links], -1: untouched
    std::vector<std::int64_t> link_of_;                        // [touched links]
    std::array<std::vector<Columns>, kTrafficKinds> carried_;  // [kinds][windows]
};

}  // namespace netsim
