#include "link_log.hpp"

#include <algorithm>
#include <numeric>

namespace serving {

namespace {

constexpr TimePs kFirstWindowPs = 1'000'000'000'000 / 64;  // our choice: 15.6 ms show a burst of transfers

}  // namespace

LinkLog::LinkLog(std::int64_t links, std::int64_t windows)
    : windows_(windows + windows % 2), window_ps_(kFirstWindowPs), column_of_(static_cast<std::size_t>(links), -1) {
    for (auto& table : carried_) table.resize(static_cast<std::size_t>(windows_));
}

std::size_t LinkLog::column(std::int64_t link) {
    std::int32_t& column = column_of_[static_cast<std::size_t>(link)];
    if (column < 0) {
        column = static_cast<std::int32_t>(link_of_.size());
        link_of_.push_back(link);
    }
    return static_cast<std::size_t>(column);
}

void LinkLog::add(Traffic traffic, const std::vector<std::int64_t>& links, const std::vector<double>& link_bytes,
                  TimePs start_ps, TimePs end_ps, double times) {
    if (links.empty()) return;
    while (end_ps >= windows_ * window_ps_) widen();
    for (TimePs window = start_ps / window_ps_; window <= end_ps / window_ps_; ++window) {
        const TimePs begin_ps = std::max(start_ps, window * window_ps_);
        const TimePs until_ps = std::min(end_ps, (window + 1) * window_ps_);
        const double share =
            end_ps > start_ps ? static_cast<double>(until_ps - begin_ps) / static_cast<double>(end_ps - start_ps) : 1.0;
        Columns& columns = carried_[static_cast<std::size_t>(traffic)][static_cast<std::size_t>(window)];
        for (std::size_t place = 0; place < links.size(); ++place) {
            const std::size_t at = column(links[place]);
            if (at >= columns.size()) columns.resize(link_of_.size(), 0.0);
            columns[at] += link_bytes[place] * times * share;
        }
    }
}

std::int32_t LinkLog::remember(std::vector<std::int64_t> links, std::vector<double> link_bytes) {
    loads_.push_back({std::move(links), std::move(link_bytes)});
    return static_cast<std::int32_t>(loads_.size()) - 1;
}

void LinkLog::add_load(std::int32_t load, std::int64_t steps, TimePs start_ps, TimePs end_ps) {
    const Load& known = loads_.at(static_cast<std::size_t>(load));
    add(Traffic::kCollective, known.links, known.link_bytes, start_ps, end_ps, static_cast<double>(steps));
}

std::vector<double> LinkLog::total_bytes(Traffic traffic) const {
    std::vector<double> totals(column_of_.size(), 0.0);
    for (const Columns& columns : carried_[static_cast<std::size_t>(traffic)]) {
        for (std::size_t at = 0; at < columns.size(); ++at) {
            totals[static_cast<std::size_t>(link_of_[at])] += columns[at];
        }
    }
    return totals;
}

CarriedRows LinkLog::rows() const {
    std::vector<std::size_t> by_link(link_of_.size());
    std::iota(by_link.begin(), by_link.end(), 0);
    std::sort(by_link.begin(), by_link.end(), [&](std::size_t a, std::size_t b) { return link_of_[a] < link_of_[b]; });
    CarriedRows rows;
    for (std::size_t traffic = 0; traffic < kTrafficClasses; ++traffic) {
        for (std::size_t window = 0; window < carried_[traffic].size(); ++window) {
            const Columns& columns = carried_[traffic][window];
            for (const std::size_t at : by_link) {
                if (at >= columns.size() || columns[at] == 0.0) continue;
                rows.traffic.push_back(static_cast<std::uint8_t>(traffic));
                rows.window.push_back(static_cast<std::int64_t>(window));
                rows.link.push_back(link_of_[at]);
                rows.carried_bytes.push_back(columns[at]);
            }
        }
    }
    return rows;
}

void LinkLog::widen() {
    window_ps_ *= 2;
    for (auto& table : carried_) {
        for (std::size_t window = 0; window < table.size() / 2; ++window) {
            Columns merged = std::move(table[2 * window]);
            const Columns& second = table[2 * window + 1];
            merged.resize(std::max(merged.size(), second.size()), 0.0);
            for (std::size_t at = 0; at < second.size(); ++at) merged[at] += second[at];
            table[window] = std::move(merged);
        }
        for (std::size_t window = table.size() / 2; window < table.size(); ++window) table[window] = {};
    }
}

}  // namespace serving
