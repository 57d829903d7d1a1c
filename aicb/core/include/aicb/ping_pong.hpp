// Schedule of micro-batches that take turns on attention workers and FFN workers (aicb/iteration/ping_pong.py).
#pragma once

#include <aicb/two_batch.hpp>
#include <cstddef>
#include <vector>

namespace aicb {

// Time of one piece of work: what it computes, and collectives in it, which last longer under load.
struct Piece {
    double compute_ps = 0.0;
    double communication_ps = 0.0;

    double lasting_ps(double slowdown) const { return compute_ps + communication_ps * slowdown; }
};

// What one micro-batch does in one layer of a kind, in this order.
struct LayerPieces {
    Piece attention, send, ffn, give_back;
};

struct PingPong {
    std::vector<std::size_t> kind_of_layer;
    std::vector<std::vector<LayerPieces>> pieces;  // [kinds][micro-batches]
    std::vector<Piece> first;                      // [micro-batches] before the first layer, on attention workers
    Piece last;                                    // after the last layer of all micro-batches, on attention workers

    std::size_t micro_batches() const { return first.size(); }
};

// Begin and end of a piece.
struct Span {
    double begin_ps, end_ps;
};

// [layers · micro-batches · 4] spans in the order of the schedule: (attention, send, FFN, return) of each.
std::vector<Span> timeline(const PingPong& schedule, double slowdown);

// The length of the schedule as a function of the slowdown of communication: `overlapped_ps` of it.
struct PingPongTime {
    double not_overlapped_ps = 0.0;
    std::vector<OverlapSegment> segments;
    // Of the longest path where communication takes no time.
    double attention_ps = 0.0;
    double ffn_ps = 0.0;
    double last_ps = 0.0;
};

PingPongTime ping_pong_time(const PingPong& schedule);

}  // namespace aicb
