#include <aicb/ping_pong.hpp>
#include <cassert>
#include <cmath>
#include <utility>

namespace aicb {

namespace {

// Breakpoints closer to the function than this part of it are left out.
constexpr double kNegligible = 1e-7;
// A slowdown at which communication decides alone.
constexpr double kUtmost = 1e6;

enum Resource : std::size_t { kAttention, kSend, kFfn, kReturn, kResources };

// End of a piece: of all paths to it the longest at one slowdown, by what it consists of.
struct Path {
    double end_ps = 0.0;
    double attention_ps = 0.0, ffn_ps = 0.0, communication_ps = 0.0;

    double compute_ps() const { return attention_ps + ffn_ps; }
};

// The later end; of equal ones the path that communicates more, so that the rising side of a corner is taken.
const Path& later(const Path& one, const Path& other) {
    if (one.end_ps != other.end_ps) return one.end_ps > other.end_ps ? one : other;
    return one.communication_ps >= other.communication_ps ? one : other;
}

Path followed(Path path, const Piece& piece, Resource on, double slowdown) {
    path.end_ps += piece.lasting_ps(slowdown);
    (on == kFfn ? path.ffn_ps : path.attention_ps) += piece.compute_ps;
    path.communication_ps += piece.communication_ps;
    return path;
}

// Layer by layer, and in a layer micro-batch by micro-batch; every resource serves one after another in this order.
template <typename Note>
Path longest_path(const PingPong& schedule, double slowdown, Note note) {
    const std::size_t count = schedule.micro_batches();
    std::vector<Path> ready(count);  // [micro-batches] when its layer before is done
    Path free[kResources];
    bool is_first = true;
    for (const std::size_t kind : schedule.kind_of_layer) {
        for (std::size_t batch = 0; batch < count; ++batch) {
            if (is_first) ready[batch] = followed(free[kAttention], schedule.first[batch], kAttention, slowdown);
            const LayerPieces& own = schedule.pieces[kind][batch];
            const Piece* pieces[kResources] = {&own.attention, &own.send, &own.ffn, &own.give_back};
            for (std::size_t on = 0; on < kResources; ++on) {
                const Path begin = later(ready[batch], free[on]);
                ready[batch] = free[on] = followed(begin, *pieces[on], static_cast<Resource>(on), slowdown);
                note(Span{begin.end_ps, free[on].end_ps});
            }
        }
        is_first = false;
    }
    Path end = free[kAttention];
    for (const Path& each : ready) end = later(end, each);
    return followed(end, schedule.last, kAttention, slowdown);
}

Path longest_path(const PingPong& schedule, double slowdown) {
    return longest_path(schedule, slowdown, [](const Span&) {});
}

double at(const Path& path, double slowdown) { return path.compute_ps() + path.communication_ps * slowdown; }

// Adds the lines between two that are exact at their slowdowns, and the second one.
void add_lines(const PingPong& schedule, const Path& low, const Path& high, std::vector<Path>& lines) {
    if (high.communication_ps <= low.communication_ps) return;
    const double corner = (low.compute_ps() - high.compute_ps()) / (high.communication_ps - low.communication_ps);
    if (corner > 0.0 && corner < kUtmost) {
        const Path found = longest_path(schedule, corner);
        const bool is_between = found.communication_ps > low.communication_ps &&
                                found.communication_ps < high.communication_ps &&
                                at(found, corner) > at(low, corner) * (1.0 + kNegligible);
        if (is_between) {
            add_lines(schedule, low, found, lines);
            add_lines(schedule, found, high, lines);
            return;
        }
    }
    lines.push_back(high);
}

}  // namespace

std::vector<Span> timeline(const PingPong& schedule, double slowdown) {
    std::vector<Span> spans;
    longest_path(schedule, slowdown, [&](const Span& span) { spans.push_back(span); });
    return spans;
}

// The longest path is the greatest of finitely many lines in the slowdown, so the length is convex and piecewise
// linear: C(last) + D(first)·s + Σ max(C(k) − C(k + 1), (D(k + 1) − D(k))·s) over its lines C(k) + D(k)·s, rising in D.
PingPongTime ping_pong_time(const PingPong& schedule) {
    assert(schedule.micro_batches() > 0 && !schedule.kind_of_layer.empty());
    const Path idle = longest_path(schedule, 0.0);
    const Path alone = longest_path(schedule, 1.0);
    std::vector<Path> lines{idle};
    add_lines(schedule, idle, alone, lines);
    add_lines(schedule, lines.back(), longest_path(schedule, kUtmost), lines);
    PingPongTime time;
    time.not_overlapped_ps = lines.back().compute_ps();
    if (idle.communication_ps > 0.0) time.segments.push_back({0.0, idle.communication_ps, 1.0});
    for (std::size_t line = 0; line + 1 < lines.size(); ++line) {
        time.segments.push_back({lines[line].compute_ps() - lines[line + 1].compute_ps(),
                                 lines[line + 1].communication_ps - lines[line].communication_ps, 1.0});
    }
    time.last_ps = schedule.last.compute_ps;
    time.attention_ps = idle.attention_ps - time.last_ps;
    time.ffn_ps = idle.ffn_ps;
    return time;
}

}  // namespace aicb
