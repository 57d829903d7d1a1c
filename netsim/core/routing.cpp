#include "routing.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <utility>

namespace netsim {

namespace {

constexpr std::uint16_t kUnreachable = std::numeric_limits<std::uint16_t>::max();
constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

}  // namespace

Routing::Routing(const Network& network, std::uint32_t ecmp_seed)
    : network_(network),
      ecmp_seed_(ecmp_seed),
      is_up_(network.link_count(), true),
      component_(network.node_count(), kNone),
      member_(network.node_count(), kNone),
      destination_tables_(network.node_count()) {
    find_components();
}

void Routing::find_components() {
    std::vector<NodeId> found;
    for (NodeId first = 0; first < network_.node_count(); ++first) {
        if (!network_.forwards(first) || component_[first] != kNone) continue;
        const auto component = static_cast<std::uint32_t>(components_.size());
        const auto add = [&](NodeId node) {
            if (!network_.forwards(node) || component_[node] != kNone) return;
            component_[node] = component;
            member_[node] = static_cast<std::uint32_t>(found.size());
            found.push_back(node);
        };
        found.clear();
        add(first);
        for (std::size_t next = 0; next < found.size(); ++next) {
            for (const LinkId link : network_.out_links(found[next])) add(network_.link(link).dst);
            for (const LinkId link : network_.in_links(found[next])) add(network_.link(link).src);
        }
        components_.push_back({.members = static_cast<std::uint32_t>(found.size()), .hop_sets = {}});
    }
}

std::size_t Routing::KeyHash::operator()(const Key& key) const {
    std::uint64_t mixed = (std::uint64_t{key.src} << 32 | key.dst) * 0x9e3779b97f4a7c15ULL;
    mixed = (mixed ^ mixed >> 32 ^ key.flow_label ^ std::uint64_t{key.is_reverse} << 32) * 0xbf58476d1ce4e5b9ULL;
    return static_cast<std::size_t>(mixed ^ mixed >> 29);
}

const Path& Routing::path(NodeId src, NodeId dst, std::uint32_t flow_label) {
    return cached_path({src, dst, flow_label, false});
}

const Path& Routing::reverse_path(NodeId src, NodeId dst, std::uint32_t flow_label) {
    return cached_path({src, dst, flow_label, true});
}

std::vector<LinkId> Routing::next_hops(NodeId at, NodeId dst) {
    check_node(at);
    check_node(dst);
    const std::span<const LinkId> hops = equal_hops(at, dst);
    return {hops.begin(), hops.end()};
}

void Routing::set_link_up(LinkId link, bool is_up) {
    if (link >= network_.link_count()) {
        throw MisuseError("unknown link: found " + std::to_string(static_cast<std::int32_t>(link)) +
                          ", expected 0 to " + std::to_string(std::int64_t(network_.link_count()) - 1));
    }
    if (is_up_[link] == is_up) return;
    is_up_[link] = is_up;
    ++epoch_;
    const auto [src, dst] = std::pair(network_.link(link).src, network_.link(link).dst);
    if (!network_.forwards(dst)) {
        destination_tables_[dst].clear();
    } else if (network_.forwards(src)) {
        ++components_[component_[src]].epoch;
        components_[component_[src]].hop_sets.clear();
    }
}

std::vector<LinkId> Routing::links_between(std::span<const NodeId> nodes) {
    for (const NodeId node : nodes) check_node(node);
    seen_.resize(network_.node_count(), 0);
    std::vector<LinkId> links;
    std::vector<NodeId> open;
    const auto visit = [&](NodeId node) {
        if (std::exchange(seen_[node], searches_) != searches_) open.push_back(node);
    };
    for (const NodeId dst : nodes) {
        ++searches_;
        seen_[dst] = searches_;
        for (const NodeId src : nodes) visit(src);
        while (!open.empty()) {
            const NodeId at = open.back();
            open.pop_back();
            for (const LinkId link : equal_hops(at, dst)) {
                links.push_back(link);
                visit(network_.link(link).dst);
            }
        }
    }
    std::ranges::sort(links);
    links.erase(std::ranges::unique(links).begin(), links.end());
    return links;
}

std::optional<std::int64_t> Routing::total_hops(std::span<const NodeId> nodes) {
    for (const NodeId node : nodes) check_node(node);
    std::int64_t total = 0;
    for (const NodeId dst : nodes) {
        for (const NodeId src : nodes) {
            const Hops away = distance_from(src, dst);
            if (away == kUnreachable) return std::nullopt;
            total += away;
        }
    }
    return total;
}

void Routing::check_node(NodeId node) const {
    if (node < network_.node_count()) return;
    throw MisuseError("unknown node: found " + std::to_string(static_cast<std::int32_t>(node)) + ", expected 0 to " +
                      std::to_string(std::int64_t(network_.node_count()) - 1));
}

const Path& Routing::cached_path(const Key& key) {
    const auto entry = cache_.find(key);
    if (entry != cache_.end() && entry->second.epoch == epoch_) return *entry->second.path;
    check_node(key.src);
    check_node(key.dst);
    Path found = trace(key);
    CachedPath& cached = entry != cache_.end() ? entry->second : cache_[key];
    if (cached.path == nullptr || cached.path->links != found.links)
        cached.path = &paths_.emplace_back(std::move(found));
    cached.epoch = epoch_;
    return *cached.path;
}

Path Routing::trace(const Key& key) {
    const FlowTuple forward = flow_tuple(key.src, key.dst, key.flow_label);
    const FlowTuple tuple = key.is_reverse ? forward.reversed() : forward;
    const auto [from, to] = key.is_reverse ? std::pair(key.dst, key.src) : std::pair(key.src, key.dst);
    Path path{{}, 0, std::numeric_limits<std::int64_t>::max()};
    for (NodeId at = from; at != to;) {
        const std::span<const LinkId> hops = equal_hops(at, to);
        if (hops.empty()) {
            throw NoPath("no path: found none from node " + std::to_string(from) + " to node " + std::to_string(to) +
                         ", expected a connection through switches (GPUs do not forward)");
        }
        const LinkId chosen =
            hops.size() == 1 ? hops[0] : hops[ecmp_hash(tuple, hash_seed(at, ecmp_seed_)) % hops.size()];
        const Link& link = network_.link(chosen);
        path.links.push_back(chosen);
        path.latency_ps += link.latency_ps;
        path.bottleneck_bps = std::min(path.bottleneck_bps, link.capacity_bps);
        at = link.dst;
    }
    return path;
}

// Valid until the next call.
std::span<const LinkId> Routing::equal_hops(NodeId at, NodeId dst) {
    if (at == dst) return {};
    direct_hops_.clear();
    if (network_.forwards(at)) {
        Table* table = table_in(component_[at], dst);
        if (table == nullptr) return {};
        if (network_.forwards(dst) || table->hops[member_[at]] != 0) return hops_of_switch(at, *table);
        for (const LinkId link : network_.in_links(dst)) {
            if (network_.link(link).src == at && is_up_[link]) direct_hops_.push_back(link);
        }
        return direct_hops_;
    }
    Hops nearest = kUnreachable;
    for (const LinkId link : network_.out_links(at)) {
        const Hops away = is_up_[link] ? distance(network_.link(link).dst, dst) : kUnreachable;
        if (away == kUnreachable || away > nearest) continue;
        if (away < nearest) direct_hops_.clear();
        nearest = away;
        direct_hops_.push_back(link);
    }
    prefer_nvswitches(direct_hops_);
    return direct_hops_;
}

// Of a switch that others separate from the destination.
std::span<const LinkId> Routing::hops_of_switch(NodeId at, Table& table) {
    HopSet& known = table.next_hops[member_[at]];
    if (known == nullptr) {
        std::vector<LinkId> hops;
        const Hops away = table.hops[member_[at]];
        for (const LinkId link : network_.out_links(at)) {
            const NodeId next = network_.link(link).dst;
            if (!network_.forwards(next) || !is_up_[link] || away == kUnreachable) continue;
            if (table.hops[member_[next]] + 1 == away) hops.push_back(link);
        }
        prefer_nvswitches(hops);
        known = &*components_[table.component].hop_sets.insert(std::move(hops)).first;
    }
    return *known;
}

void Routing::prefer_nvswitches(std::vector<LinkId>& hops) const {
    const auto leads_to_nvswitch = [&](LinkId link) { return network_.is_nvswitch(network_.link(link).dst); };
    if (std::ranges::any_of(hops, leads_to_nvswitch)) std::erase_if(hops, std::not_fn(leads_to_nvswitch));
}

Routing::Hops Routing::distance(NodeId node, NodeId dst) {
    if (node == dst) return 0;
    const Table* table = network_.forwards(node) ? table_in(component_[node], dst) : nullptr;
    if (table == nullptr || table->hops[member_[node]] == kUnreachable) return kUnreachable;
    return static_cast<Hops>(table->hops[member_[node]] + (network_.forwards(dst) ? 0 : 1));
}

// From a node that need not forward.
Routing::Hops Routing::distance_from(NodeId src, NodeId dst) {
    if (src == dst || network_.forwards(src)) return distance(src, dst);
    Hops nearest = kUnreachable;
    for (const LinkId link : network_.out_links(src)) {
        if (is_up_[link]) nearest = std::min(nearest, distance(network_.link(link).dst, dst));
    }
    return nearest == kUnreachable ? nearest : static_cast<Hops>(nearest + 1);
}

// nullptr where no switch of the component is attached to the destination.
Routing::Table* Routing::table_in(std::uint32_t component, NodeId dst) {
    for (const std::uint32_t index : tables_of(dst)) {
        Table& table = tables_[index];
        if (table.component != component) continue;
        if (table.epoch != components_[component].epoch) build(table);
        return &table;
    }
    return nullptr;
}

const std::vector<std::uint32_t>& Routing::tables_of(NodeId dst) {
    std::vector<std::uint32_t>& tables = destination_tables_[dst];
    if (!tables.empty()) return tables;
    std::map<std::uint32_t, std::vector<NodeId>> attached;  // by component
    if (network_.forwards(dst)) {
        attached[component_[dst]].push_back(dst);
    } else {
        for (const LinkId link : network_.in_links(dst)) {
            const NodeId node = network_.link(link).src;
            if (network_.forwards(node) && is_up_[link]) attached[component_[node]].push_back(node);
        }
    }
    for (auto& [component, nodes] : attached) {
        std::ranges::sort(nodes);
        nodes.erase(std::ranges::unique(nodes).begin(), nodes.end());
        tables.push_back(table_to(nodes));
    }
    return tables;
}

std::uint32_t Routing::table_to(const std::vector<NodeId>& attached) {
    const auto [entry, is_new] = table_index_.try_emplace(attached, static_cast<std::uint32_t>(tables_.size()));
    if (is_new) {
        tables_.push_back({component_[attached.front()], 0, attached, {}, {}});
        build(tables_.back());
    }
    return entry->second;
}

// Of the links that are up now.
void Routing::build(Table& table) {
    const Component& component = components_[table.component];
    table.epoch = component.epoch;
    table.next_hops.assign(component.members, nullptr);
    std::vector<Hops>& hops = table.hops;
    hops.assign(component.members, kUnreachable);
    for (const NodeId node : table.attached) hops[member_[node]] = 0;
    std::vector<NodeId> frontier = table.attached;
    ++tables_built_;
    for (std::size_t next = 0; next < frontier.size(); ++next) {
        const auto away = static_cast<Hops>(hops[member_[frontier[next]]] + 1);
        for (const LinkId link : network_.in_links(frontier[next])) {
            const NodeId before = network_.link(link).src;
            if (!network_.forwards(before) || !is_up_[link] || hops[member_[before]] != kUnreachable) continue;
            hops[member_[before]] = away;
            frontier.push_back(before);
        }
    }
}

PathTable paths_of(Routing& routing, const std::vector<NodeId>& src, const std::vector<NodeId>& dst,
                   const std::vector<std::uint32_t>& flow_label, bool is_reverse) {
    if (src.size() != dst.size() || src.size() != flow_label.size()) {
        throw MisuseError("paths: found " + std::to_string(src.size()) + " sources, " + std::to_string(dst.size()) +
                          " destinations and " + std::to_string(flow_label.size()) + " labels, expected equal numbers");
    }
    PathTable table{{0}, {}};
    for (std::size_t flow = 0; flow < src.size(); ++flow) {
        try {
            const Path& path = is_reverse ? routing.reverse_path(src[flow], dst[flow], flow_label[flow])
                                          : routing.path(src[flow], dst[flow], flow_label[flow]);
            table.links.insert(table.links.end(), path.links.begin(), path.links.end());
        } catch (const NoPath&) {  // it has no links
        }
        table.offsets.push_back(static_cast<std::int64_t>(table.links.size()));
    }
    return table;
}

}  // namespace netsim
