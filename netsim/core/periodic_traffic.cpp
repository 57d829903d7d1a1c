#include "periodic_traffic.hpp"

#include <algorithm>
#include <cmath>

namespace netsim {

namespace {

// Share of a link that loads can take from flows for good; our choice.
constexpr double kMostShare = 0.9;
// Share of what loads leave them from which on flows are held to take whatever they find; our choice.
constexpr double kSaturated = 0.99;
// Flows hear of loads in steps of this share of the link's capacity, rounded up, and of less of it when it is two
// steps: keeps the work per iteration small, at an error of that order, and never leaves them too much; our choice.
constexpr double kStep = 5e-4;
// Change of the mean flows on a link, relative to them and one more, from which on sources that meet there are updated;
// our choice.
constexpr double kShift = 0.05;
// Relative change of a rate of flows below which loads leave it alone; our choice.
constexpr double kSmallestChange = 1e-3;
// Rounding of sums of rates.
constexpr double kRounding = 1e-12;

}  // namespace

PeriodicTraffic::PeriodicTraffic(std::size_t sources, const Network& network, Routing& routing,
                                 const RateCarrier& carrier, TakeShare take_share)
    : network_(network),
      routing_(routing),
      carrier_(carrier),
      take_share_(std::move(take_share)),
      uses_(network.link_count()),
      sources_(sources) {}

void PeriodicTraffic::announce(std::int32_t number, std::int32_t load_number) {
    Source& source = at(number);
    if (!source.loads.insert(load_number).second) return;
    for (const std::int64_t link : load(load_number).links) {
        if (!source.links.insert(link).second) continue;
        LinkUse& on = use(link);
        on.users.push_back(number);
        source.queues += on.queues;
        source.degraded += carrier_.capacity_share(static_cast<LinkId>(link)) < 1.0;
        if (on.users.size() == 2) meets_others(on.users.front());
        if (on.users.size() >= 2) meets_others(number);
    }
    if (is_affected(number)) note_affected(number);
}

// What it has placed was placed alone.
void PeriodicTraffic::meets_others(std::int32_t source) {
    if (at(source).meets) return;
    at(source).meets = true;
    note_affected(source);
    has_shifted_ = true;
}

void PeriodicTraffic::begins(Handle graph, const FlowGraph& flows) {
    OnLinks& found = graphs_[graph];
    for (std::size_t flow = 0; flow < flows.size(); ++flow) {
        found.heads.insert(
            {{static_cast<NodeId>(flows.src[flow]), static_cast<NodeId>(flows.dst[flow])}, flows.flow_label[flow]});
    }
    find_links(found);
    count(found, 1);
}

void PeriodicTraffic::ends(Handle graph) {
    const auto found = graphs_.find(graph);
    if (found == graphs_.end()) return;  // has begun before anybody wanted to know
    count(found->second, -1);
    graphs_.erase(found);
}

void PeriodicTraffic::reroute() {
    for (const auto& [handle, graph] : graphs_) count(graph, -1);
    for (auto& [handle, graph] : graphs_) {
        find_links(graph);
        count(graph, 1);
    }
}

void PeriodicTraffic::find_links(OnLinks& graph) {
    graph.queues.clear();
    for (const auto& [ends, label] : graph.heads) {
        try {
            for (const LinkId link : routing_.path(ends.first, ends.second, label).links) ++graph.queues[link];
        } catch (const NoPath&) {
            // is on no link
        }
    }
}

void PeriodicTraffic::count(const OnLinks& graph, std::int64_t sign) {
    for (const auto& [link, queues] : graph.queues) {
        LinkUse& on = use(link);
        const bool was_idle = on.queues == 0;
        on.queues += sign * queues;
        for (const std::int32_t user : on.users) {
            at(user).queues += sign * queues;
            note_affected(user);
        }
        if (was_idle) {
            on.flow_place = flow_links_.size();
            flow_links_.push_back(link);
        } else if (on.queues == 0) {
            use(flow_links_.back()).flow_place = on.flow_place;
            std::swap(flow_links_[on.flow_place], flow_links_.back());
            flow_links_.pop_back();
            on.flow_rate_bps = 0.0;
        }
    }
}

void PeriodicTraffic::share_changes(LinkId link, double old_share, double share) {
    for (const std::int32_t user : use(link).users) {
        at(user).degraded += (share < 1.0) - (old_share < 1.0);
        note_affected(user);
    }
}

bool PeriodicTraffic::is_affected(std::int32_t number) const {
    const Source& source = at(number);
    return source.meets || source.queues > 0 || source.degraded > 0;
}

// It is updated once more after the last that affects it has gone.
void PeriodicTraffic::note_affected(std::int32_t source) {
    if (at(source).is_noted) return;
    at(source).is_noted = true;
    affected_.push_back(source);
}

std::vector<std::int32_t> PeriodicTraffic::take_affected() {
    std::vector<std::int32_t> taken = std::exchange(affected_, {});
    std::sort(taken.begin(), taken.end());
    for (const std::int32_t source : taken) at(source).is_noted = false;
    for (const std::int32_t source : taken) {
        if (is_affected(source)) note_affected(source);
    }
    return taken;
}

double PeriodicTraffic::capacity_bps(std::int64_t link) const {
    return carrier_.capacity_bps(static_cast<LinkId>(link));
}

// Most that loads may take of a link.
double PeriodicTraffic::most_bps(std::int64_t link) const {
    return (use(link).queues > 0 ? kMostShare : 1.0) * capacity_bps(link);
}

double PeriodicTraffic::slowdown(std::int32_t number, TimePs idle_ps) const {
    const LinkLoad& own = load(number);
    double longest_ps = 0.0;
    for (std::size_t place = 0; place < own.links.size(); ++place) {
        longest_ps = std::max(longest_ps, needed_ps(own, place) - own.link_busy_ps[place]);
    }
    return longest_ps > 0.0 ? 1.0 + longest_ps / static_cast<double>(idle_ps) : 1.0;
}

// What its bytes need on one of its links, with what others have there.
double PeriodicTraffic::needed_ps(const LinkLoad& own, std::size_t place) const {
    const auto link = static_cast<LinkId>(own.links[place]);
    const LinkUse& on = use(link);
    const double capacity = capacity_bps(link);
    const bool is_greedy = on.flow_rate_bps >= kSaturated * (capacity - carrier_.background_bps(link));
    const double flows = own.link_flows[place];
    double others = std::max(on.mean_flows, 0.0);
    if (on.flow_rate_bps > 0.0) others += static_cast<double>(on.queues);
    const double fair_bps = capacity * (flows / (flows + others));
    const double left_bps = is_greedy ? 0.0 : capacity - on.flow_rate_bps - std::max(on.mean_bps, 0.0);
    return 8 * static_cast<double>(kPsPerSecond) * own.link_bytes[place] / std::max(fair_bps, left_bps);
}

void PeriodicTraffic::withdraw(std::int32_t source) {
    for (const Placed& placed : std::exchange(at(source).placed, {})) put(placed, -1.0);
}

void PeriodicTraffic::place(std::int32_t source, std::int32_t number, TimePs period_ps) {
    const LinkLoad& own = load(number);
    std::vector<double> flows;
    flows.reserve(own.links.size());
    for (std::size_t place = 0; place < own.links.size(); ++place) {
        flows.push_back(own.link_flows[place] * std::min(1.0, needed_ps(own, place) / static_cast<double>(period_ps)));
    }
    at(source).placed.push_back({number, period_ps, std::move(flows)});
    put(at(source).placed.back(), 1.0);
}

// Adds what a load takes of links on average, or takes it away again.
void PeriodicTraffic::put(const Placed& placed, double sign) {
    const LinkLoad& own = load(placed.load);
    const double bps_per_byte = 8 * static_cast<double>(kPsPerSecond) / static_cast<double>(placed.period_ps);
    for (std::size_t place = 0; place < own.links.size(); ++place) {
        LinkUse& on = use(own.links[place]);
        const double rate_bps = own.link_bytes[place] * bps_per_byte;
        on.mean_bps += sign * rate_bps;
        on.mean_flows += sign * placed.mean_flows[place];
        if (!on.is_unshared) {
            on.is_unshared = true;
            unshared_.push_back(own.links[place]);
        }
        if (sign < 0.0) continue;
        if (on.mean_bps > most_bps(own.links[place])) overfull_.push_back(own.links[place]);
        if (on.users.size() < 2 || std::abs(on.mean_flows - on.noted_flows) <= kShift * (1.0 + on.mean_flows)) continue;
        on.noted_flows = on.mean_flows;
        has_shifted_ = true;
    }
}

std::optional<PeriodicLoads::Excess> PeriodicTraffic::excess() {
    for (; !overfull_.empty(); overfull_.pop_back()) {
        const std::int64_t link = overfull_.back();
        const double factor = use(link).mean_bps / most_bps(link);
        if (factor <= 1.0 + kRounding) continue;
        Excess found{factor, {}};
        for (const std::int32_t user : use(link).users) {
            const auto& placed = at(user).placed;
            const bool is_there = std::any_of(placed.begin(), placed.end(), [&](const Placed& each) {
                const auto& links = load(each.load).links;
                return std::binary_search(links.begin(), links.end(), link);
            });
            if (is_there) found.sources.push_back(user);
        }
        return found;
    }
    return std::nullopt;
}

void PeriodicTraffic::read_flow_rates() {
    for (const LinkId link : flow_links_) use(link).flow_rate_bps = carrier_.link_rate_bps(link);
}

bool PeriodicTraffic::do_flow_rates_hold() {
    return std::all_of(flow_links_.begin(), flow_links_.end(), [&](LinkId link) {
        const double seen_bps = use(link).flow_rate_bps;
        return std::abs(carrier_.link_rate_bps(link) - seen_bps) <= kSmallestChange * seen_bps;
    });
}

void PeriodicTraffic::share_links(TimePs now_ps) {
    std::vector<LinkId> links;
    std::vector<double> rates_bps;
    std::sort(unshared_.begin(), unshared_.end());
    for (const std::int64_t number : unshared_) {
        const auto link = static_cast<LinkId>(number);
        LinkUse& on = use(link);
        on.is_unshared = false;
        const double capacity = capacity_bps(link), known_bps = carrier_.background_bps(link);
        // Sums of differences: less than a millionth of the link is what rounding has left of loads that are gone.
        double mean_bps = on.mean_bps < 1e-6 * capacity ? 0.0 : on.mean_bps;
        const double step_bps = kStep * capacity, unused_bps = known_bps - mean_bps;
        if (mean_bps > 0.0 ? unused_bps >= 0.0 && unused_bps <= 2 * step_bps : unused_bps == 0.0) continue;
        mean_bps = std::min(std::ceil(mean_bps / step_bps) * step_bps, kMostShare * capacity);
        if (mean_bps == known_bps) continue;
        links.push_back(link);
        rates_bps.push_back(mean_bps);
    }
    unshared_.clear();
    if (!links.empty()) take_share_(now_ps, links, rates_bps);
}

}  // namespace netsim
