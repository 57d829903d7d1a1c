#include "fluid_coupling.hpp"

#include <algorithm>
#include <cmath>

#include "errors.hpp"

namespace serving {

namespace {

constexpr double kPsPerSecond = 1e12;
// Share of what instances leave them from which on transfers are held to take whatever they find; our choice.
constexpr double kSaturated = 0.99;
// Transfers hear of a background in steps of this share of the link's capacity, rounded up, and of less of it when it
// is two steps: keeps the work per iteration small, at an error of that order, and never leaves them too much; our
// choice.
constexpr double kStep = 5e-4;
// Change of the mean flows on a link, relative to them and one more, from which on instances that meet there are
// updated; our choice.
constexpr double kShift = 0.05;
// Rounding of sums of rates.
constexpr double kRounding = 1e-12;

}  // namespace

FluidCoupling::FluidCoupling(std::vector<double> capacity_bps, std::size_t instances) : instances_(instances) {
    links_.reserve(capacity_bps.size());
    for (const double rate_bps : capacity_bps)
        links_.push_back({.nominal_bps = rate_bps, .capacity_bps = rate_bps, .users = {}});
}

void FluidCoupling::uses(std::int32_t number, std::int32_t load_number) {
    Instance& instance = at(number);
    if (!instance.loads.insert(load_number).second) return;
    for (const std::int64_t used : load(load_number).links) {
        if (!instance.links.insert(used).second) continue;
        Link& on = link(used);
        on.users.push_back(number);
        instance.transfers += on.transfer_flows;
        instance.degraded += on.capacity_bps < on.nominal_bps;
        if (on.users.size() == 2) meets_others(on.users.front());
        if (on.users.size() >= 2) meets_others(number);
    }
    if (concerns(number)) note_concerned(number);
}

// What it has in flight was launched alone.
void FluidCoupling::meets_others(std::int32_t instance) {
    if (at(instance).meets) return;
    at(instance).meets = true;
    note_concerned(instance);
    has_shifted_ = true;
}

void FluidCoupling::add_transfer(const Links& links, const std::vector<std::int64_t>& flows) {
    for (std::size_t place = 0; place < links.size(); ++place) {
        Link& on = link(links[place]);
        const bool was_idle = on.transfer_flows == 0;
        on.transfer_flows += flows[place];
        for (const std::int32_t user : on.users) {
            at(user).transfers += flows[place];
            note_concerned(user);
        }
        if (was_idle && on.transfer_flows != 0) {
            on.transfer_place = transfer_links_.size();
            transfer_links_.push_back(links[place]);
        } else if (!was_idle && on.transfer_flows == 0) {
            link(transfer_links_.back()).transfer_place = on.transfer_place;
            std::swap(transfer_links_[on.transfer_place], transfer_links_.back());
            transfer_links_.pop_back();
            on.rate_bps = 0.0;
        }
    }
}

void FluidCoupling::set_rates(const std::vector<double>& rates_bps) {
    ensure(rates_bps.size() == transfer_links_.size(), "one rate for each link with transfers");
    for (std::size_t place = 0; place < rates_bps.size(); ++place) {
        link(transfer_links_[place]).rate_bps = rates_bps[place];
    }
}

void FluidCoupling::set_capacity(const Links& links, const std::vector<double>& capacity_bps) {
    for (std::size_t place = 0; place < links.size(); ++place) {
        Link& on = link(links[place]);
        const int change = (capacity_bps[place] < on.nominal_bps) - (on.capacity_bps < on.nominal_bps);
        on.capacity_bps = capacity_bps[place];
        for (const std::int32_t user : on.users) {
            at(user).degraded += change;
            note_concerned(user);
        }
    }
}

bool FluidCoupling::concerns(std::int32_t number) const {
    const Instance& instance = at(number);
    return instance.meets || instance.transfers > 0 || instance.degraded > 0;
}

// It is updated once more after the last that concerns it has gone.
void FluidCoupling::note_concerned(std::int32_t instance) {
    if (at(instance).was_concerned) return;
    at(instance).was_concerned = true;
    concerned_.push_back(instance);
}

std::vector<std::int32_t> FluidCoupling::take_concerned() {
    std::vector<std::int32_t> taken = std::exchange(concerned_, {});
    std::sort(taken.begin(), taken.end());
    for (const std::int32_t instance : taken) at(instance).was_concerned = false;
    for (const std::int32_t instance : taken) {
        if (concerns(instance)) note_concerned(instance);
    }
    return taken;
}

std::vector<double> FluidCoupling::stretches(const Flight& flight) const {
    std::vector<double> stretches;
    for (const Stage& stage : flight.stages) stretches.push_back(stretch(stage));
    return stretches;
}

double FluidCoupling::stretch(const Stage& stage) const {
    const LinkLoad& own = load(stage.load);
    double longest_ps = 0.0;
    for (std::size_t place = 0; place < own.links.size(); ++place) {
        longest_ps = std::max(longest_ps, needed_ps(own, place) - own.link_busy_ps[place]);
    }
    return longest_ps > 0.0 ? 1.0 + longest_ps / static_cast<double>(stage.communication_ps) : 1.0;
}

// What its bytes need on one of its links, beside what others have there.
double FluidCoupling::needed_ps(const LinkLoad& own, std::size_t place) const {
    const Link& on = link(own.links[place]);
    const bool is_greedy = on.rate_bps >= kSaturated * (on.capacity_bps - on.told_bps);
    const double flows = own.link_flows[place];
    double others = std::max(on.mean_flows, 0.0);
    if (on.rate_bps > 0.0) others += static_cast<double>(on.transfer_flows);
    const double fair_bps = on.capacity_bps * (flows / (flows + others));
    const double left_bps = is_greedy ? 0.0 : on.capacity_bps - on.rate_bps - std::max(on.mean_bps, 0.0);
    return 8 * kPsPerSecond * own.link_bytes[place] / std::max(fair_bps, left_bps);
}

void FluidCoupling::withdraw(std::int32_t instance) {
    for (const Entered& entered : std::exchange(at(instance).entered, {})) put(entered, -1.0);
}

void FluidCoupling::enter(const Flight& flight, TimePs period_ps) {
    for (const Stage& stage : flight.stages) {
        const LinkLoad& own = load(stage.load);
        std::vector<double> flows;
        for (std::size_t place = 0; place < own.links.size(); ++place) {
            flows.push_back(own.link_flows[place] *
                            std::min(1.0, needed_ps(own, place) / static_cast<double>(period_ps)));
        }
        at(flight.instance).entered.push_back({stage.load, period_ps, std::move(flows)});
        put(at(flight.instance).entered.back(), 1.0);
    }
}

// Adds what iterations of one kind take of links on average, or takes it away again.
void FluidCoupling::put(const Entered& entered, double sign) {
    const LinkLoad& own = load(entered.load);
    const double bps_per_byte = 8 * kPsPerSecond / static_cast<double>(entered.period_ps);
    for (std::size_t place = 0; place < own.links.size(); ++place) {
        Link& on = link(own.links[place]);
        const double rate_bps = own.link_bytes[place] * bps_per_byte;
        on.mean_bps += sign * rate_bps;
        on.mean_flows += sign * entered.mean_flows[place];
        if (!on.is_untold) {
            on.is_untold = true;
            untold_.push_back(own.links[place]);
        }
        if (sign < 0.0) continue;
        if (on.mean_bps > on.limit_bps()) overfull_.push_back(own.links[place]);
        if (on.users.size() < 2 || std::abs(on.mean_flows - on.noted_flows) <= kShift * (1.0 + on.mean_flows)) continue;
        on.noted_flows = on.mean_flows;
        has_shifted_ = true;
    }
}

std::optional<Excess> FluidCoupling::excess() {
    for (; !overfull_.empty(); overfull_.pop_back()) {
        const Link& on = link(overfull_.back());
        const double factor = on.mean_bps / on.limit_bps();
        if (factor <= 1.0 + kRounding) continue;
        Excess found{factor, {}};
        for (const std::int32_t user : on.users) {
            const auto& entered = at(user).entered;
            const bool is_there = std::any_of(entered.begin(), entered.end(), [&](const Entered& of_stage) {
                const Links& links = load(of_stage.load).links;
                return std::binary_search(links.begin(), links.end(), overfull_.back());
            });
            if (is_there) found.instances.push_back(user);
        }
        return found;
    }
    return std::nullopt;
}

LinkRates FluidCoupling::take_changed_background() {
    LinkRates changed;
    std::sort(untold_.begin(), untold_.end());
    for (const std::int64_t number : untold_) {
        Link& on = link(number);
        on.is_untold = false;
        // Sums of differences: less than a millionth of the link is what rounding has left of loads that are gone.
        double background_bps = on.mean_bps < 1e-6 * on.capacity_bps ? 0.0 : on.mean_bps;
        const double step_bps = kStep * on.capacity_bps, unused_bps = on.told_bps - background_bps;
        if (background_bps > 0.0 ? unused_bps >= 0.0 && unused_bps <= 2 * step_bps : unused_bps == 0.0) continue;
        background_bps = std::min(std::ceil(background_bps / step_bps) * step_bps, kMostBackground * on.capacity_bps);
        if (background_bps == on.told_bps) continue;
        on.told_bps = background_bps;
        changed.links.push_back(number);
        changed.rates_bps.push_back(background_bps);
    }
    untold_.clear();
    return changed;
}

}  // namespace serving
