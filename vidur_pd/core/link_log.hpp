// Bytes on links over time, by class of traffic, in a bounded number of windows of equal width.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "request.hpp"

namespace serving {

enum class Traffic : std::uint8_t { kKv, kCollective };
constexpr std::size_t kTrafficClasses = 2;

// Rows of a table: bytes of one class on one link in one window.
struct CarriedRows {
    std::vector<std::uint8_t> traffic;
    std::vector<std::int64_t> window, link;
    std::vector<double> carried_bytes;
};

// Accumulates link loads; windows double in width when time outgrows them. Only links that carry something, and windows
// in which something is carried, take memory. Bytes are spread evenly over the time that they are given with.
class LinkLog {
  public:
    LinkLog(std::int64_t links, std::int64_t windows);

    TimePs window_ps() const { return window_ps_; }
    // Adds bytes on distinct links from start to end; without duration they fall into the window of their instant.
    void add(Traffic traffic, const std::vector<std::int64_t>& links, const std::vector<double>& link_bytes,
             TimePs start_ps, TimePs end_ps, double times = 1.0);
    // Remembers a load under the next number.
    std::int32_t remember(std::vector<std::int64_t> links, std::vector<double> link_bytes);
    // Adds a remembered load `steps` times, as collectives.
    void add_load(std::int32_t load, std::int64_t steps, TimePs start_ps, TimePs end_ps);
    // [links]
    std::vector<double> total_bytes(Traffic traffic) const;
    // Every (traffic, window, link) that carried something.
    CarriedRows rows() const;

  private:
    struct Load {
        std::vector<std::int64_t> links;
        std::vector<double> link_bytes;
    };
    using Columns = std::vector<double>;  // [touched links]

    std::size_t column(std::int64_t link);
    void widen();

    std::int64_t windows_;
    TimePs window_ps_;
    std::vector<std::int32_t> column_of_;                        // [links], -1: untouched
    std::vector<std::int64_t> link_of_;                          // [touched links]
    std::array<std::vector<Columns>, kTrafficClasses> carried_;  // [classes][windows]
    std::vector<Load> loads_;
};

}  // namespace serving
