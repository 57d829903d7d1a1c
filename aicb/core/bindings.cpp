// Python bindings of the core; aicb/_core.pyi describes the module.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <aicb/ping_pong.hpp>
#include <aicb/two_batch.hpp>
#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "stage_pricing.hpp"

namespace py = pybind11;

namespace aicb {

namespace {

using Integers = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;
using Floats = py::array_t<double, py::array::c_style | py::array::forcecast>;

std::vector<double> values(const Floats& array) { return {array.data(), array.data() + array.size()}; }

template <typename T>
py::array_t<T> array(const std::vector<T>& values) {
    return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

void bind_decode_calls(py::class_<DecodeTimes, std::shared_ptr<DecodeTimes>>& decodes) {
    decodes.def(
        "over",
        [](const DecodeTimes& times, const Integers& kv_tokens, std::size_t steps) {
            const auto batches = static_cast<std::size_t>(kv_tokens.shape(0));
            const auto requests = static_cast<std::size_t>(kv_tokens.shape(1));
            py::array_t<double> time_us({batches, steps});
            py::array_t<bool> is_estimate(static_cast<py::ssize_t>(batches));
            for (std::size_t batch = 0; batch < batches; ++batch) {
                is_estimate.mutable_data()[batch] = times.over(kv_tokens.data() + batch * requests, requests, steps,
                                                               time_us.mutable_data() + batch * steps);
            }
            return std::pair(time_us, is_estimate);
        },
        py::arg("kv_tokens"), py::arg("steps"));
    decodes.def(
        "of_equal",
        [](const DecodeTimes& times, const Integers& kv_tokens, std::int64_t requests) {
            py::array_t<double> time_us(kv_tokens.size());
            py::array_t<bool> is_estimate(kv_tokens.size());
            for (py::ssize_t batch = 0; batch < kv_tokens.size(); ++batch) {
                std::tie(time_us.mutable_data()[batch], is_estimate.mutable_data()[batch]) =
                    times.of_equal(kv_tokens.data()[batch], requests);
            }
            return std::pair(time_us, is_estimate);
        },
        py::arg("kv_tokens"), py::arg("requests"));
}

void bind_spans(py::module_& module) {
    py::class_<KeySpan>(module, "KeySpan")
        .def(py::init<std::int64_t, bool>(), py::arg("tokens"), py::kw_only(), py::arg("is_chunked"))
        .def("seen", py::vectorize(&KeySpan::seen), py::arg("kv_tokens"))
        .def(
            "chunk_requests",
            [](const KeySpan& span, const Integers& new_tokens, const Integers& kv_tokens) {
                PromptRequests made;
                for (py::ssize_t i = 0; i < new_tokens.size(); ++i) {
                    span.add_chunks(new_tokens.data()[i], kv_tokens.data()[i], made);
                }
                return std::pair(array(made.new_tokens), array(made.kv_tokens));
            },
            py::arg("new_tokens"), py::arg("kv_tokens"));
}

void bind_decodes(py::module_& module) {
    py::class_<SplitKv>(module, "SplitKv")
        .def(py::init<std::int64_t, std::int64_t, std::int64_t, double, double, double, double, double, double>(),
             py::kw_only(), py::arg("block_tokens"), py::arg("overhead_blocks"), py::arg("parts"),
             py::arg("unequal_us"), py::arg("unequal_share"), py::arg("unequal_from_us"), py::arg("equal_spread"),
             py::arg("longest_us") = 0.0, py::arg("longest_token_us") = 0.0);
    py::class_<KvCost>(module, "KvCost")
        .def(py::init<double, double, double>(), py::kw_only(), py::arg("tensor_us"), py::arg("memory_us"),
             py::arg("own_memory_us"))
        .def("least_us", py::vectorize(&KvCost::least_us), py::arg("kv_tokens"));
    py::class_<DecodeTransfer>(module, "DecodeTransfer")
        .def(py::init<double, double, KvCost, KvCost, KvCost>(), py::kw_only(), py::arg("origin_latency_us"),
             py::arg("target_latency_us"), py::arg("origin"), py::arg("target"), py::arg("bound"));
    py::class_<VolumeFunction>(module, "VolumeFunction")
        .def(py::init([](const Floats& volume, const Floats& time_us, const Floats& slope) {
                 return VolumeFunction{values(volume), values(time_us), values(slope)};
             }),
             py::arg("volume"), py::arg("time_us"), py::arg("slope"))
        .def("__call__", py::vectorize(&VolumeFunction::at), py::arg("volume"));
    py::class_<DecodeTimes, std::shared_ptr<DecodeTimes>> decodes(module, "DecodeTimes");
    decodes
        .def(py::init([](const VolumeFunction& time, const SplitKv& volume_of, const KvCost& bound,
                         const std::pair<double, double>& volume_range, bool is_estimate) {
                 return DecodeTimes{time, volume_of, bound, volume_range.first, volume_range.second, is_estimate, {}};
             }),
             py::arg("time"), py::kw_only(), py::arg("volume_of"), py::arg("bound"), py::arg("volume_range"),
             py::arg("is_estimate"))
        .def(
            "transferred",
            [](const DecodeTimes& times, const DecodeTransfer& transfer) {
                DecodeTimes made = times;
                made.transfer = transfer;
                return made;
            },
            py::arg("transfer"));
    bind_decode_calls(decodes);
    py::class_<DecodeKernel>(module, "DecodeKernel")
        .def(py::init([](std::shared_ptr<DecodeTimes> times, std::shared_ptr<DecodeTimes> one_query, std::int64_t count,
                         std::uint64_t name, const KvCost& cost, const std::optional<KeySpan>& span) {
                 return DecodeKernel{std::move(times), std::move(one_query), {count, name, cost}, span};
             }),
             py::arg("times"), py::arg("one_query"), py::kw_only(), py::arg("count"), py::arg("name"), py::arg("cost"),
             py::arg("span"));
    py::class_<TimedKernel>(module, "TimedKernel")
        .def(py::init([](const Floats& time_us, const std::optional<Floats>& one_query_us, std::vector<std::int64_t> kv,
                         bool is_estimate, std::int64_t count, std::uint64_t name, const KvCost& cost) {
                 return TimedKernel{{count, name, cost},
                                    values(time_us),
                                    one_query_us ? values(*one_query_us) : std::vector<double>{},
                                    std::move(kv),
                                    is_estimate};
             }),
             py::arg("time_us"), py::arg("one_query_us"), py::arg("kv_tokens"), py::arg("is_estimate"), py::kw_only(),
             py::arg("count"), py::arg("name"), py::arg("cost"));
}

// A row of aicb.kernels.prefill_attention.PrefillTimes.
PrefillShape prefill_shape(const double* row) {
    const double heads = row[0], kv_heads = row[1], d_qk = row[2], d_v = row[3], kv_tokens = row[5],
                 new_tokens = row[6];
    return {kv_heads, heads / kv_heads, d_qk + d_v, kv_tokens, new_tokens};
}

void bind_kriging(py::module_& module) {
    py::class_<Correlation>(module, "Correlation")
        .def(py::init([](const Floats& coordinates, const std::vector<double>& lengths,
                         const std::vector<double>& own_lengths, double own_share) {
                 const std::vector<double> points = values(coordinates);
                 std::optional<Matern> own;
                 if (own_share > 0.0) own.emplace(points, own_lengths);
                 return Correlation(Matern(points, lengths), std::move(own), own_share);
             }),
             py::arg("coordinates"), py::arg("lengths"), py::arg("own_lengths"), py::arg("own_share"))
        .def(
            "with_places",
            [](const Correlation& correlation, const Floats& places) {
                py::array_t<double> found({places.shape(0), static_cast<py::ssize_t>(correlation.points())});
                for (py::ssize_t row = 0; row < places.shape(0); ++row) {
                    correlation.with(places.data(row, 0), found.mutable_data(row, 0));
                }
                return found;
            },
            py::arg("places"))
        .def("among_points", [](const Correlation& correlation) {
            const auto points = static_cast<py::ssize_t>(correlation.points());
            py::array_t<double> found({points, points});
            correlation.among_points(found.mutable_data());
            return found;
        });
    py::class_<Kriging, std::shared_ptr<Kriging>>(module, "Kriging")
        .def(py::init<Correlation, std::vector<double>, double>(), py::arg("correlation"), py::arg("weights"),
             py::arg("mean"))
        .def(
            "at",
            [](const Kriging& kriging, const Floats& places) {
                py::array_t<double> found(places.shape(0));
                for (py::ssize_t row = 0; row < places.shape(0); ++row) {
                    found.mutable_data()[row] = kriging.at(places.data(row, 0));
                }
                return found;
            },
            py::arg("places"));
}

// Of prompts and decodes with their times alone; no decodes: of the prompts.
double mixed_us(const MixedCall& call, double prompts_us, const Integers& new_tokens, const Integers& prompts_kv,
                double decodes_us, const Integers& decodes_kv) {
    PromptPart prompts{.time_us = prompts_us};
    for (py::ssize_t i = 0; i < new_tokens.size(); ++i) call.add(prompts, new_tokens.data()[i], prompts_kv.data()[i]);
    if (decodes_kv.size() == 0) return call.prompts_us(prompts);
    DecodePart decodes{.time_us = decodes_us, .requests = static_cast<double>(decodes_kv.size())};
    for (py::ssize_t i = 0; i < decodes_kv.size(); ++i) {
        const auto own = static_cast<double>(decodes_kv.data()[i]);
        decodes.kv_tokens += own;
        decodes.most_kv = std::max(decodes.most_kv, own);
    }
    return call.time_us(prompts, decodes);
}

void bind_prefills(py::module_& module) {
    py::class_<PrefillTile>(module, "PrefillTile")
        .def(py::init<double, double, double, double>(), py::kw_only(), py::arg("width"), py::arg("rows"),
             py::arg("block_tokens"), py::arg("block_share"));
    py::class_<PrefillReference>(module, "PrefillReference")
        .def(py::init<double, double, double, double, double, double, std::vector<PrefillTile>, double, double>(),
             py::kw_only(), py::arg("floor_us"), py::arg("tile_us"), py::arg("tile_width_us"),
             py::arg("split_width_us"), py::arg("combine_us"), py::arg("combine_row_us"), py::arg("tiles"),
             py::arg("peak_flops"), py::arg("sms"))
        .def(
            "times_us",
            [](const PrefillReference& reference, const Floats& shapes) {
                py::array_t<double> found(shapes.shape(0));
                for (py::ssize_t row = 0; row < shapes.shape(0); ++row) {
                    found.mutable_data()[row] = reference.time_us(prefill_shape(shapes.data(row, 0)));
                }
                return found;
            },
            py::arg("shapes"))
        .def(
            "coordinates",
            [](const PrefillReference& reference, const Floats& shapes) {
                py::array_t<double> found({shapes.shape(0), py::ssize_t{8}});
                for (py::ssize_t row = 0; row < shapes.shape(0); ++row) {
                    const auto place = reference.coordinates(prefill_shape(shapes.data(row, 0)));
                    std::copy(place.begin(), place.end(), found.mutable_data(row, 0));
                }
                return found;
            },
            py::arg("shapes"));
    module.def("causal_pairs", py::vectorize(&causal_pairs), py::arg("new_tokens"), py::arg("kv_tokens"));
    py::class_<PrefillRates>(module, "PrefillRates")
        .def(py::init<double, double, double>(), py::kw_only(), py::arg("flops_per_pair"),
             py::arg("bytes_per_kv_token"), py::arg("bytes_per_new_token"));
    py::class_<PrefillBound>(module, "PrefillBound")
        .def(py::init<double, double, double>(), py::kw_only(), py::arg("peak_flops"), py::arg("bytes_per_s"),
             py::arg("resident_bytes"));
    py::class_<PrefillTransfer>(module, "PrefillTransfer")
        .def(py::init<double, double, double, double, double, double, double, double>(), py::kw_only(),
             py::arg("origin_latency_us"), py::arg("target_latency_us"), py::arg("origin_flops"),
             py::arg("origin_bytes_per_s"), py::arg("target_flops"), py::arg("target_bytes_per_s"),
             py::arg("peak_flops"), py::arg("bytes_per_s"));
    py::class_<PrefillTimes, std::shared_ptr<PrefillTimes>>(module, "PrefillTimes")
        .def(py::init([](const std::array<std::int64_t, 4>& geometry, const PrefillReference& reference,
                         const PrefillBound& bound, const PrefillRates& rates, const std::array<double, 3>& reach,
                         bool is_estimate, bool keeps_measured, std::shared_ptr<Kriging> residuals,
                         std::optional<PrefillTransfer> transfer, std::optional<double> window) {
                 PrefillTimes made;
                 made.window = window.value_or(kNoWindow);
                 made.geometry = {geometry[0], geometry[1], geometry[2], geometry[3]};
                 made.reference = reference;
                 made.bound = bound;
                 made.rates = rates;
                 made.least_new = reach[0];
                 made.most_new = reach[1];
                 made.most_kv = reach[2];
                 made.is_estimate = is_estimate;
                 made.keeps_measured = keeps_measured;
                 made.residuals = std::move(residuals);
                 made.transfer = transfer;
                 return made;
             }),
             py::arg("geometry"), py::kw_only(), py::arg("reference"), py::arg("bound"), py::arg("rates"),
             py::arg("reach"), py::arg("is_estimate"), py::arg("keeps_measured"), py::arg("residuals"),
             py::arg("transfer") = py::none(), py::arg("window") = py::none())
        .def("insert_measured", &PrefillTimes::insert_measured, py::arg("requests"), py::arg("kv_tokens"),
             py::arg("new_tokens"), py::arg("time_us"))
        .def(
            "of",
            [](PrefillTimes& times, const Integers& new_tokens, const Integers& kv_tokens) {
                const auto found =
                    times.of(new_tokens.data(), kv_tokens.data(), static_cast<std::size_t>(new_tokens.size()));
                return std::tuple(found.time_us, found.is_measured, found.is_estimate);
            },
            py::arg("new_tokens"), py::arg("kv_tokens"));
    py::class_<MixedCall>(module, "MixedCall")
        .def(py::init([](double floor_us, double decode_floor_us, double split_us, double prompt_split_us,
                         double start_us, double key_us, double rows, double block_tokens, double sharing,
                         double kv_heads, double sms, double split_tokens, bool is_estimate) {
                 return MixedCall{floor_us,   decode_floor_us, split_us, prompt_split_us, start_us, key_us,
                                  rows,       block_tokens,    sharing,  kv_heads,        sms,      split_tokens,
                                  is_estimate};
             }),
             py::kw_only(), py::arg("floor_us"), py::arg("decode_floor_us"), py::arg("split_us"),
             py::arg("prompt_split_us"), py::arg("start_us"), py::arg("key_us"), py::arg("rows"),
             py::arg("block_tokens"), py::arg("sharing"), py::arg("kv_heads"), py::arg("sms"), py::arg("split_tokens"),
             py::arg("is_estimate"))
        .def("time_us", &mixed_us, py::arg("prompts_us"), py::arg("new_tokens"), py::arg("prompts_kv"),
             py::arg("decodes_us"), py::arg("decodes_kv"));
    py::class_<PrefillKernel>(module, "PrefillKernel")
        .def(py::init([](std::shared_ptr<PrefillTimes> times, std::int64_t count, std::uint64_t name,
                         double stream_bytes_per_s, double load_flops, const std::optional<KeySpan>& span,
                         const std::optional<MixedCall>& mixed) {
                 return PrefillKernel{std::move(times), {count, name, stream_bytes_per_s, load_flops}, span, mixed};
             }),
             py::arg("times"), py::kw_only(), py::arg("count"), py::arg("name"), py::arg("stream_bytes_per_s"),
             py::arg("load_flops"), py::arg("span"), py::arg("mixed"));
}

void bind_parts(py::module_& module) {
    py::enum_<OperatorGroup>(module, "OperatorGroup")
        .value("TOKENS", OperatorGroup::kTokens)
        .value("OTHER_DECODE_KERNELS", OperatorGroup::kOtherDecodeKernels)
        .value("MASKED_EXPERTS", OperatorGroup::kMaskedExperts)
        .value("CONTIGUOUS_EXPERTS", OperatorGroup::kContiguousExperts)
        .value("HEAD", OperatorGroup::kHead)
        .value("EXPANDED_CHUNK", OperatorGroup::kExpandedChunk)
        .value("EXPANDED_PAST", OperatorGroup::kExpandedPast)
        .value("MERGED", OperatorGroup::kMerged)
        .value("RECURRENT_PROMPTS", OperatorGroup::kRecurrentPrompts);
    py::class_<PricedOperators>(module, "PricedOperators")
        .def(py::init([](const std::array<TimePs, kPhases>& phase_ps, const std::array<TimePs, 4>& sums_ps,
                         std::uint64_t estimated, std::int32_t communications) {
                 const auto [total_ps, estimated_ps, clocked_ps, tensor_ps] = sums_ps;
                 return PricedOperators{phase_ps,  total_ps,  estimated_ps,  clocked_ps,
                                        tensor_ps, estimated, communications};
             }),
             py::arg("phase_ps"), py::arg("sums_ps"), py::arg("estimated"), py::arg("communications"))
        .def_readonly("phase_ps", &PricedOperators::phase_ps)
        .def_readonly("total_ps", &PricedOperators::total_ps)
        .def(
            "__add__",
            [](PricedOperators part, const PricedOperators& other) {
                part += other;
                return part;
            },
            py::is_operator())
        .def("scaled_to", &PricedOperators::scaled_to, py::arg("total_ps"));
    module.def("priced_together", &priced_together, py::arg("tokens"), py::arg("run"));
    py::class_<InternTable, std::shared_ptr<InternTable>>(module, "InternTable")
        .def(py::init<>())
        .def("estimated", &InternTable::estimated, py::arg("number"))
        .def(
            "communications",
            [](const InternTable& numbers, std::int32_t number) {
                const auto& lists = numbers.communications(number);
                return std::make_tuple(lists.tokens, lists.experts, lists.head);
            },
            py::arg("number"));
}

using PiecePs = std::array<double, 2>;

Piece piece(const PiecePs& parts) { return {parts[0], parts[1]}; }

void bind_ping_pong(py::module_& module) {
    py::class_<PingPong>(module, "PingPong")
        .def(py::init([](std::vector<std::size_t> kind_of_layer,
                         const std::vector<std::vector<std::array<PiecePs, 4>>>& pieces,
                         const std::vector<PiecePs>& first, const PiecePs& last) {
                 PingPong made{std::move(kind_of_layer), {}, {}, piece(last)};
                 for (const auto& of_kind : pieces) {
                     auto& own = made.pieces.emplace_back();
                     for (const auto& [attention, send, ffn, back] : of_kind)
                         own.push_back({piece(attention), piece(send), piece(ffn), piece(back)});
                 }
                 for (const PiecePs& each : first) made.first.push_back(piece(each));
                 return made;
             }),
             py::kw_only(), py::arg("kind_of_layer"), py::arg("pieces"), py::arg("first"), py::arg("last"))
        .def("time", &ping_pong_time)
        .def(
            "timeline",
            [](const PingPong& schedule, double slowdown) {
                const std::vector<Span> spans = timeline(schedule, slowdown);
                py::array_t<double> found(
                    {schedule.kind_of_layer.size(), schedule.micro_batches(), std::size_t{4}, std::size_t{2}});
                double* values = found.mutable_data();
                for (const Span& span : spans) {
                    *values++ = span.begin_ps;
                    *values++ = span.end_ps;
                }
                return found;
            },
            py::arg("slowdown") = 1.0);
    py::class_<PingPongTime>(module, "PingPongTime")
        .def_readonly("not_overlapped_ps", &PingPongTime::not_overlapped_ps)
        .def_property_readonly("overlapped",
                               [](const PingPongTime& time) {
                                   std::vector<std::array<double, 3>> segments;
                                   for (const OverlapSegment& each : time.segments)
                                       segments.push_back({each.compute_ps, each.communication_ps, each.share});
                                   return segments;
                               })
        .def_readonly("attention_ps", &PingPongTime::attention_ps)
        .def_readonly("ffn_ps", &PingPongTime::ffn_ps)
        .def_readonly("last_ps", &PingPongTime::last_ps)
        .def(
            "lasting_ps",
            [](const PingPongTime& time, double slowdown) {
                return overlapped_ps(time.not_overlapped_ps, time.segments, slowdown);
            },
            py::arg("slowdown") = 1.0);
}

void bind_rules(py::module_& module) {
    py::class_<ShortChunks>(module, "ShortChunks")
        .def(py::init([](std::int64_t most_tokens, std::int64_t reach_tokens, bool is_estimate, double start_us,
                         double pair_us, double query_us, double flops_per_pair, double bytes_per_query,
                         double bytes_per_key, std::int64_t count, std::uint64_t name, double stream_bytes_per_s,
                         double peak_flops) {
                 return ShortChunks{most_tokens,    reach_tokens,
                                    is_estimate,    start_us,
                                    pair_us,        query_us,
                                    flops_per_pair, bytes_per_query,
                                    bytes_per_key,  {count, name, stream_bytes_per_s, peak_flops}};
             }),
             py::kw_only(), py::arg("most_tokens"), py::arg("reach_tokens"), py::arg("is_estimate"),
             py::arg("start_us"), py::arg("pair_us"), py::arg("query_us"), py::arg("flops_per_pair"),
             py::arg("bytes_per_query"), py::arg("bytes_per_key"), py::arg("count"), py::arg("name"),
             py::arg("stream_bytes_per_s"), py::arg("peak_flops"));
    py::class_<PromptKernels>(module, "PromptKernels")
        .def(py::init<bool, bool, std::optional<ShortChunks>>(), py::kw_only(), py::arg("expand_latents"),
             py::arg("are_recurrent"), py::arg("chunks") = py::none());
    py::class_<ClockLaw>(module, "ClockLaw")
        .def(py::init<double, double, double, double, double>(), py::kw_only(), py::arg("reference_mhz"),
             py::arg("light_mhz"), py::arg("heavy_mhz"), py::arg("light_share"), py::arg("heavy_share"))
        .def("mhz", py::vectorize(&ClockLaw::mhz), py::arg("tensor_share"))
        .def("slowdown", py::vectorize(&ClockLaw::slowdown), py::arg("tensor_share"));
    module.def("clocked_share", py::vectorize(&clocked_share), py::arg("time_us"), py::arg("memory_us"));
    py::class_<OverlapSegment>(module, "OverlapSegment")
        .def(py::init<double, double, double>(), py::arg("compute_ps"), py::arg("communication_ps"), py::arg("share"));
    module.def("overlapped_ps", &overlapped_ps, py::arg("not_overlapped_ps"), py::arg("segments"), py::arg("slowdown"));
    py::class_<HostTimes>(module, "HostTimes")
        .def(py::init<TimePs, TimePs, TimePs, TimePs, TimePs, TimePs, TimePs, TimePs, TimePs, TimePs>(), py::kw_only(),
             py::arg("step_ps"), py::arg("gaps_ps"), py::arg("prepare_ps"), py::arg("prompt_ps"), py::arg("token_ps"),
             py::arg("request_ps"), py::arg("hand_over_ps"), py::arg("full_ps"), py::arg("piecewise_ps"),
             py::arg("eager_ps"));
    py::class_<StageRules>(module, "StageRules")
        .def(py::init<std::vector<std::int64_t>, std::vector<std::int64_t>, bool, bool, HostTimes,
                      std::optional<ClockLaw>, std::optional<ClockLaw>>(),
             py::kw_only(), py::arg("graph_sizes"), py::arg("prompt_graph_sizes"), py::arg("replays_divided"),
             py::arg("shares_experts"), py::arg("host"), py::arg("clock"), py::arg("settled_clock"))
        .def_readonly("graph_sizes", &StageRules::graph_sizes)
        .def_readonly("prompt_graph_sizes", &StageRules::prompt_graph_sizes);
    py::class_<IterationCost>(module, "IterationCost")
        .def_readonly("compute_ps", &IterationCost::compute_ps)
        .def_readonly("host_ps", &IterationCost::host_ps)
        .def_readonly("estimated_ps", &IterationCost::estimated_ps)
        .def_property_readonly("prepare_ps", [](const IterationCost& cost) { return cost.host.prepare_ps; })
        .def_property_readonly("launch_ps", [](const IterationCost& cost) { return cost.host.launch_ps; })
        .def_property_readonly("hand_over_ps", [](const IterationCost& cost) { return cost.host.hand_over_ps; })
        .def_readonly("phase_ps", &IterationCost::phase_ps)
        .def_readonly("estimated", &IterationCost::estimated)
        .def_readonly("communications", &IterationCost::communications);
}

using Priced = std::optional<std::pair<IterationCost, py::array_t<TimePs>>>;

RankBatches view(const std::optional<Integers>& new_tokens, const Integers& kv_tokens, const Integers& requests,
                 const std::int64_t* logit_rows) {
    return {new_tokens ? new_tokens->data() : nullptr, kv_tokens.data(), requests.data(), logit_rows,
            static_cast<std::size_t>(requests.size())};
}

Priced price(IterationPricing& pricing, const std::optional<Integers>& new_tokens, const Integers& kv_tokens,
             const Integers& requests, const Integers& logit_rows, std::int64_t steps) {
    IterationCost first{};
    std::vector<TimePs> compute_ps;
    const RankBatches batches = view(new_tokens, kv_tokens, requests, logit_rows.data());
    if (!pricing.price(batches, steps, first, compute_ps)) return std::nullopt;
    return std::pair(first, array(compute_ps));
}

Priced price_queries(StagePricing& pricing, const std::optional<Integers>& new_tokens, const Integers& kv_tokens,
                     const Integers& requests, std::int64_t rows, std::int64_t steps, std::int64_t queries) {
    IterationCost first{};
    std::vector<TimePs> compute_ps;
    const RankBatches batches = view(new_tokens, kv_tokens, requests, nullptr);
    if (!pricing.price_queries(batches, steps, queries, rows, first, compute_ps)) return std::nullopt;
    return std::pair(first, array(compute_ps));
}

using RankAttention = std::tuple<std::int64_t, PricedOperators, std::vector<TimedKernel>>;

Priced price_timed(StagePricing& pricing, const std::vector<RankAttention>& ranks, std::int64_t steps,
                   std::int64_t most_requests, std::int64_t logit_rows, bool is_decode, bool is_divided) {
    TimedAttention timed{{}, steps, most_requests, logit_rows, {is_decode, is_divided}};
    for (const auto& [tokens, prompts, decodes] : ranks) timed.ranks.push_back({tokens, prompts, decodes});
    IterationCost first{};
    std::vector<TimePs> compute_ps;
    if (!pricing.price_timed(timed, first, compute_ps)) return std::nullopt;
    return std::pair(first, array(compute_ps));
}

void bind_pricing(py::module_& module) {
    py::class_<IterationPricing, std::shared_ptr<IterationPricing>>(module, "IterationPricing")
        .def("price", &price, py::arg("new_tokens"), py::arg("kv_tokens"), py::arg("requests"), py::arg("logit_rows"),
             py::arg("steps") = 1)
        .def(
            "host_work",
            [](IterationPricing& pricing, const Integers& new_tokens, const Integers& kv_tokens,
               const Integers& requests) {
                const HostWork work = pricing.host_work(view(new_tokens, kv_tokens, requests, nullptr));
                return std::tuple(work.prepare_ps, work.launch_ps, work.hand_over_ps);
            },
            py::arg("new_tokens"), py::arg("kv_tokens"), py::arg("requests"));
    py::class_<StagePricing, IterationPricing, std::shared_ptr<StagePricing>>(module, "StagePricing")
        .def(py::init([](const StageRules& rules, std::vector<PrefillKernel> prefills, const PromptKernels& others,
                         std::shared_ptr<InternTable> numbers) {
                 return std::make_shared<StagePricing>(rules, StageAttention(std::move(prefills), others),
                                                       std::move(numbers));
             }),
             py::arg("rules"), py::arg("prefills"), py::arg("others"), py::arg("interned"))
        .def("price_queries", &price_queries, py::arg("new_tokens"), py::arg("kv_tokens"), py::arg("requests"),
             py::kw_only(), py::arg("rows"), py::arg("steps"), py::arg("queries"))
        .def("price_timed", &price_timed, py::arg("ranks"), py::kw_only(), py::arg("steps"), py::arg("most_requests"),
             py::arg("logit_rows"), py::arg("is_decode"), py::arg("is_divided"))
        .def("take_missing_groups",
             [](StagePricing& pricing) {
                 std::vector<std::tuple<OperatorGroup, std::int64_t, std::int64_t>> taken;
                 for (const GroupKey& key : std::exchange(pricing.groups.missing, {})) {
                     taken.emplace_back(key.kind, key.first, key.second);
                 }
                 return taken;
             })
        .def("take_missing_sizes",
             [](StagePricing& pricing) {
                 std::vector<std::pair<std::int64_t, std::int64_t>> taken;
                 for (const DecodeSize& size : std::exchange(pricing.attention.missing_sizes, {})) {
                     taken.emplace_back(size.requests, size.queries);
                 }
                 return taken;
             })
        .def(
            "insert_group",
            [](StagePricing& pricing, const std::tuple<OperatorGroup, std::int64_t, std::int64_t>& key,
               const PricedOperators& priced) {
                const auto [kind, first, second] = key;
                pricing.groups.insert({kind, first, second}, priced);
            },
            py::arg("key"), py::arg("priced"))
        .def(
            "insert_size",
            [](StagePricing& pricing, const std::pair<std::int64_t, std::int64_t>& size,
               std::vector<DecodeKernel> kernels) {
                pricing.attention.insert({size.first, size.second}, std::move(kernels));
            },
            py::arg("size"), py::arg("kernels"));
}

}  // namespace

PYBIND11_MODULE(_core, module) {
    module.doc() = "Iterations of serving instances, priced from parts.";
    bind_spans(module);
    bind_decodes(module);
    bind_kriging(module);
    bind_prefills(module);
    bind_parts(module);
    bind_ping_pong(module);
    bind_rules(module);
    bind_pricing(module);
}

}  // namespace aicb
