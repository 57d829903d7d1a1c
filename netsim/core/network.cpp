#include "network.hpp"

#include <algorithm>
#include <numeric>
#include <string>

namespace netsim {

namespace {

void check(const Link& link, std::size_t index, std::size_t nodes) {
    const std::string where = "link " + std::to_string(index);
    if (link.src >= nodes || link.dst >= nodes) {
        throw MisuseError(where + ": found an unknown node, expected nodes below " + std::to_string(nodes));
    }
    if (link.capacity_bps <= 0 || link.capacity_bps > kMaxCapacityBps) {
        throw MisuseError(where + ": found " + std::to_string(link.capacity_bps) + " bit/s, expected 1 to 10^15");
    }
    if (link.latency_ps < 0) {
        throw MisuseError(where + ": found latency " + std::to_string(link.latency_ps) + " ps, expected none below 0");
    }
}

// Link ids grouped by one of their end nodes, in compressed sparse row form.
void group(const std::vector<Link>& links, NodeId Link::* end, std::vector<std::size_t>& offsets,
           std::vector<LinkId>& ids) {
    for (const Link& link : links) ++offsets[link.*end + 1];
    for (std::size_t node = 1; node < offsets.size(); ++node) offsets[node] += offsets[node - 1];
    ids.resize(links.size());
    std::vector<std::size_t> next(offsets.begin(), offsets.end() - 1);
    for (LinkId id = 0; id < links.size(); ++id) ids[next[links[id].*end]++] = id;
}

}  // namespace

Network::Network(std::vector<NodeKind> nodes, std::vector<Link> links)
    : nodes_(std::move(nodes)),
      links_(std::move(links)),
      out_offsets_(nodes_.size() + 1),
      in_offsets_(nodes_.size() + 1) {
    for (std::size_t i = 0; i < links_.size(); ++i) check(links_[i], i, nodes_.size());
    group(links_, &Link::src, out_offsets_, out_);
    group(links_, &Link::dst, in_offsets_, in_);
}

std::vector<LinkId> reverse_links(const Network& network) {
    const auto ends = [&](LinkId id) { return std::pair(network.link(id).src, network.link(id).dst); };
    std::vector<LinkId> sorted(network.link_count());
    std::iota(sorted.begin(), sorted.end(), LinkId{0});
    std::ranges::stable_sort(sorted, {}, ends);
    std::vector<LinkId> reverse(sorted.size());
    for (auto first = sorted.begin(); first != sorted.end();) {
        const auto [src, dst] = ends(*first);
        const auto last = std::ranges::upper_bound(first, sorted.end(), std::pair(src, dst), {}, ends);
        const auto back = std::ranges::equal_range(sorted, std::pair(dst, src), {}, ends);
        if (std::ssize(back) < last - first) {
            throw MisuseError("link " + std::to_string(*first) + " from node " + std::to_string(src) + " to node " +
                              std::to_string(dst) + ": found no link back, expected cables with both directions");
        }
        for (auto other = back.begin(); first != last; ++first, ++other) reverse[*first] = *other;
    }
    return reverse;
}

}  // namespace netsim
