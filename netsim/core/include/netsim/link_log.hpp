// Bytes on links over time, by what they are, in a bounded number of windows of equal width.
#pragma once

#include <array>
#include <netsim/types.hpp>
#include <vector>

namespace netsim {

// Kinds of traffic that logs and counters tell apart (netsim.flow.FlowGraph.traffic).
constexpr std::size_t kTrafficKinds = 2;
// Four seconds of bursts of 15.6 ms.
constexpr std::int64_t kOpenBursts = 256;
using Traffic = std::uint8_t;

// Rows of a table: bytes of one kind on one link in one window, and what all kinds together had in its fullest burst.
struct CarriedRows {
    std::vector<std::uint8_t> traffic;
    std::vector<std::int64_t> window, link;
    std::vector<double> carried_bytes, burst_bytes;
};

// Accumulates what links carry; windows double in width when time outgrows them. Only links that carry something, and
// windows in which something is carried, take memory.
//
// Bursts are as long as windows are at first, and stay so: each window knows its fullest one. Of bursts that end
// `kOpenBursts` before the newest the sums are final; what is booked for them later (an iteration of four seconds that
// is booked at its end) is in no burst, so that the fullest one has at least what it says.
class LinkLog {
  public:
    // An odd number of windows becomes the next even one; they have a width of `window_ps` at first.
    LinkLog(std::size_t links, std::int64_t windows, TimePs window_ps);

    TimePs window_ps() const { return window_ps_; }
    TimePs burst_ps() const { return burst_ps_; }
    // End of the burst that an instant lies in, or begins; no window ends between the ends of bursts.
    TimePs burst_end_ps(TimePs at_ps) const { return later(at_ps / burst_ps_ * burst_ps_, burst_ps_); }
    // Adds bytes of a time that begins at `from_ps` and does not go beyond the end of that burst.
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

    std::size_t column_of(std::size_t link);
    // The same with room for all touched links.
    Columns& widened(Columns& columns) const;
    Columns& columns_at(Traffic traffic, TimePs at_ps);
    // nullptr for a burst whose sums are final.
    Columns* burst_at(std::int64_t burst);
    void open_burst(std::int64_t burst);
    // Adds a share of bytes to the columns of the links that are being spread over (`places_`).
    void add_at_places(Columns& columns, const std::vector<double>& link_bytes, double times, double share);
    void spread_over_bursts(const std::vector<double>& link_bytes, TimePs start_ps, TimePs end_ps, double times);
    std::vector<Columns> fullest_bursts() const;
    // Raises the fullest bursts of a window to this one.
    void close(std::int64_t burst, std::vector<Columns>& fullest) const;
    void widen();

    std::int64_t windows_;
    TimePs window_ps_;
    TimePs burst_ps_;
    std::vector<std::int32_t> column_of_;                      // [links], -1: untouched
    std::vector<std::int64_t> link_of_;                        // [touched links]
    std::array<std::vector<Columns>, kTrafficKinds> carried_;  // [kinds][windows]
    std::vector<Columns> fullest_;                             // [windows] of bursts that are closed
    std::vector<Columns> open_;                                // [kOpenBursts] by number modulo their count
    std::int64_t newest_burst_ = -1;
    std::vector<std::size_t> places_;
};

}  // namespace netsim
