#include <algorithm>
#include <netsim/link_log.hpp>
#include <numeric>
#include <string>

namespace netsim {

LinkLog::LinkLog(std::size_t links, std::int64_t windows, TimePs window_ps)
    : windows_(windows + windows % 2),
      window_ps_(window_ps),
      burst_ps_(window_ps),
      column_of_(links, -1),
      fullest_(static_cast<std::size_t>(std::max<std::int64_t>(windows_, 0))),
      open_(kOpenBursts) {
    if (windows < 1 || window_ps < 1) {
        throw MisuseError("link log: found " + std::to_string(windows) + " windows of " + std::to_string(window_ps) +
                          " ps, expected at least 1 of each");
    }
    for (auto& table : carried_) table.resize(static_cast<std::size_t>(windows_));
}

std::size_t LinkLog::column_of(std::size_t link) {
    std::int32_t& column = column_of_.at(link);
    if (column < 0) {
        column = static_cast<std::int32_t>(link_of_.size());
        link_of_.push_back(static_cast<std::int64_t>(link));
    }
    return static_cast<std::size_t>(column);
}

LinkLog::Columns& LinkLog::widened(Columns& columns) const {
    if (columns.size() < link_of_.size()) columns.resize(link_of_.size(), 0.0);
    return columns;
}

LinkLog::Columns& LinkLog::columns_at(Traffic traffic, TimePs at_ps) {
    while (at_ps / window_ps_ >= windows_) widen();
    return carried_[traffic][static_cast<std::size_t>(at_ps / window_ps_)];
}

void LinkLog::add(Traffic traffic, LinkId link, double bytes, TimePs from_ps) {
    const std::size_t column = column_of(link);
    widened(columns_at(traffic, from_ps))[column] += bytes;
    if (Columns* open = burst_at(from_ps / burst_ps_)) widened(*open)[column] += bytes;
}

LinkLog::Columns* LinkLog::burst_at(std::int64_t burst) {
    if (burst > newest_burst_) open_burst(burst);
    return burst > newest_burst_ - kOpenBursts ? &open_[static_cast<std::size_t>(burst % kOpenBursts)] : nullptr;
}

void LinkLog::open_burst(std::int64_t burst) {
    for (std::int64_t old = std::max<std::int64_t>(newest_burst_ - kOpenBursts + 1, 0);
         old <= std::min(newest_burst_, burst - kOpenBursts); ++old) {
        close(old, fullest_);
    }
    for (std::int64_t next = std::max(newest_burst_ + 1, burst - kOpenBursts + 1); next <= burst; ++next) {
        Columns& place = open_[static_cast<std::size_t>(next % kOpenBursts)];
        std::fill(place.begin(), place.end(), 0.0);
    }
    newest_burst_ = burst;
}

void LinkLog::close(std::int64_t burst, std::vector<Columns>& fullest) const {
    const Columns& bytes = open_[static_cast<std::size_t>(burst % kOpenBursts)];
    Columns& most = fullest[static_cast<std::size_t>(burst * burst_ps_ / window_ps_)];
    if (most.size() < bytes.size()) most.resize(bytes.size(), 0.0);
    for (std::size_t at = 0; at < bytes.size(); ++at) most[at] = std::max(most[at], bytes[at]);
}

// [windows] by touched link: those of closed and open bursts, and no less than the mean of the window.
std::vector<LinkLog::Columns> LinkLog::fullest_bursts() const {
    std::vector<Columns> fullest = fullest_;
    for (std::int64_t burst = std::max<std::int64_t>(newest_burst_ - kOpenBursts + 1, 0); burst <= newest_burst_;
         ++burst) {
        close(burst, fullest);
    }
    const double share = static_cast<double>(burst_ps_) / static_cast<double>(window_ps_);
    for (std::size_t window = 0; window < fullest.size(); ++window) {
        Columns& most = fullest[window];
        most.resize(link_of_.size(), 0.0);
        Columns total(link_of_.size(), 0.0);
        for (const auto& table : carried_) {
            for (std::size_t at = 0; at < table[window].size(); ++at) total[at] += table[window][at];
        }
        for (std::size_t at = 0; at < total.size(); ++at) most[at] = std::max(most[at], total[at] * share);
    }
    return fullest;
}

void LinkLog::spread(Traffic traffic, const std::vector<std::int64_t>& links, const std::vector<double>& link_bytes,
                     TimePs start_ps, TimePs end_ps, double times) {
    if (links.empty()) return;
    while (end_ps / window_ps_ >= windows_) widen();
    places_.clear();
    for (const std::int64_t link : links) places_.push_back(column_of(static_cast<std::size_t>(link)));
    for (TimePs window = start_ps / window_ps_; window <= end_ps / window_ps_; ++window) {
        const TimePs begin_ps = std::max(start_ps, window * window_ps_);
        const TimePs until_ps = std::min(end_ps, (window + 1) * window_ps_);
        if (begin_ps == until_ps && end_ps > start_ps) continue;
        const double share =
            end_ps > start_ps ? static_cast<double>(until_ps - begin_ps) / static_cast<double>(end_ps - start_ps) : 1.0;
        add_at_places(columns_at(traffic, begin_ps), link_bytes, times, share);
    }
    spread_over_bursts(link_bytes, start_ps, end_ps, times);
}

void LinkLog::add_at_places(Columns& columns, const std::vector<double>& link_bytes, double times, double share) {
    double* const into = widened(columns).data();
    for (std::size_t i = 0; i < places_.size(); ++i) into[places_[i]] += link_bytes[i] * times * share;
}

void LinkLog::spread_over_bursts(const std::vector<double>& link_bytes, TimePs start_ps, TimePs end_ps, double times) {
    const std::int64_t last = std::max(start_ps, end_ps - 1) / burst_ps_;
    for (std::int64_t burst = std::max(start_ps / burst_ps_, last - kOpenBursts + 1); burst <= last; ++burst) {
        const TimePs begin_ps = std::max(start_ps, burst * burst_ps_);
        const TimePs until_ps = std::min(end_ps, (burst + 1) * burst_ps_);
        const double share =
            end_ps > start_ps ? static_cast<double>(until_ps - begin_ps) / static_cast<double>(end_ps - start_ps) : 1.0;
        if (Columns* open = burst_at(burst)) add_at_places(*open, link_bytes, times, share);
    }
}

std::vector<double> LinkLog::total_bytes(Traffic traffic) const {
    std::vector<double> totals(column_of_.size(), 0.0);
    for (const Columns& columns : carried_[traffic]) {
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
    const std::vector<Columns> fullest = fullest_bursts();
    CarriedRows rows;
    for (std::size_t traffic = 0; traffic < kTrafficKinds; ++traffic) {
        for (std::size_t window = 0; window < carried_[traffic].size(); ++window) {
            const Columns& columns = carried_[traffic][window];
            for (const std::size_t at : by_link) {
                if (at >= columns.size() || columns[at] == 0.0) continue;
                rows.traffic.push_back(static_cast<std::uint8_t>(traffic));
                rows.window.push_back(static_cast<std::int64_t>(window));
                rows.link.push_back(link_of_[at]);
                rows.carried_bytes.push_back(columns[at]);
                rows.burst_bytes.push_back(fullest[window][at]);
            }
        }
    }
    return rows;
}

void LinkLog::widen() {
    window_ps_ *= 2;
    for (std::size_t window = 0; window < fullest_.size() / 2; ++window) {
        Columns most = std::move(fullest_[2 * window]);
        const Columns& second = fullest_[2 * window + 1];
        if (most.size() < second.size()) most.resize(second.size(), 0.0);
        for (std::size_t at = 0; at < second.size(); ++at) most[at] = std::max(most[at], second[at]);
        fullest_[window] = std::move(most);
    }
    for (std::size_t window = fullest_.size() / 2; window < fullest_.size(); ++window) fullest_[window] = {};
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

}  // namespace netsim
