// Python bindings of the congestion controllers; netsim/_core.pyi describes them.
#include "bindings_congestion.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>

#include "roce/congestion/congestion_control.hpp"

namespace py = pybind11;

namespace netsim {

namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

// A controller with the constants that it refers to.
template <typename Controller, typename Parameters>
struct Owned {
    Owned(Parameters constants, const FlowLimits& limits, TimePs now_ps)
        : parameters((check(constants), std::move(constants))), controller(parameters, limits, now_ps) {}
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;

    Parameters parameters;
    Controller controller;
};

static_assert(sizeof(IntHop) == 4 * sizeof(std::int64_t), "rows of hops are capacity, time, sent and queued bytes");

std::span<const IntHop> hops_of(const Array<std::int64_t>& hops) {
    if (hops.ndim() < 2 || hops.shape(hops.ndim() - 1) != 4) {
        throw MisuseError("hops must have the columns capacity_bps, at_ps, sent_bytes, queue_bytes");
    }
    return {reinterpret_cast<const IntHop*>(hops.data()), static_cast<std::size_t>(hops.size() / 4)};
}

// The columns of a sequence of ACKs; all of one length, `hops` of shape [acks, hops, 4].
struct AckColumns {
    Array<TimePs> now_ps;
    Array<TimePs> rtt_ps;
    Array<std::int64_t> acked_bytes;
    Array<std::int64_t> acked_seq;
    Array<std::int64_t> next_seq;
    Array<bool> is_marked;
    Array<std::int64_t> hops;

    py::ssize_t size() const {
        const py::ssize_t acks = now_ps.size();
        const bool is_even = rtt_ps.size() == acks && acked_bytes.size() == acks && acked_seq.size() == acks &&
                             next_seq.size() == acks && is_marked.size() == acks && hops.ndim() == 3 &&
                             hops.shape(0) == acks;
        if (!is_even) throw MisuseError("the columns of a sequence of ACKs must have one length");
        return acks;
    }
};

template <typename Controller>
Array<std::int64_t> run_acks(Controller& controller, const AckColumns& acks) {
    const py::ssize_t count = acks.size();
    const std::span<const IntHop> hops = hops_of(acks.hops);
    const auto hops_per_ack = static_cast<std::size_t>(acks.hops.shape(1));
    Array<std::int64_t> rates_bps(count);
    std::int64_t* const rate_bps = rates_bps.mutable_data();
    for (py::ssize_t i = 0; i < count; ++i) {
        controller.on_ack({acks.now_ps.data()[i], acks.rtt_ps.data()[i], acks.acked_bytes.data()[i],
                           acks.acked_seq.data()[i], acks.next_seq.data()[i], acks.is_marked.data()[i],
                           hops.subspan(static_cast<std::size_t>(i) * hops_per_ack, hops_per_ack)});
        rate_bps[i] = controller.rate_bps();
    }
    return rates_bps;
}

template <typename Controller, typename Parameters>
py::class_<Owned<Controller, Parameters>> bind_controller(py::module_& module, const char* name) {
    using Self = Owned<Controller, Parameters>;
    return py::class_<Self>(module, name)
        .def(py::init([](const Parameters& parameters, std::int64_t line_bps, TimePs base_rtt_ps,
                         std::int64_t mtu_bytes, std::int64_t window_bytes, TimePs now_ps) {
                 if (line_bps <= 0) throw MisuseError("congestion control needs a positive line rate");
                 const FlowLimits limits{line_bps, base_rtt_ps, mtu_bytes, window_bytes};
                 return std::make_unique<Self>(parameters, limits, now_ps);
             }),
             py::arg("parameters"), py::kw_only(), py::arg("line_bps"), py::arg("base_rtt_ps"), py::arg("mtu_bytes"),
             py::arg("window_bytes"), py::arg("now_ps") = 0)
        .def(
            "on_ack",
            [](Self& self, TimePs now_ps, TimePs rtt_ps, std::int64_t acked_bytes, std::int64_t acked_seq,
               std::int64_t next_seq, bool is_marked, const Array<std::int64_t>& hops) {
                self.controller.on_ack({now_ps, rtt_ps, acked_bytes, acked_seq, next_seq, is_marked, hops_of(hops)});
            },
            py::kw_only(), py::arg("now_ps"), py::arg("rtt_ps"), py::arg("acked_bytes"), py::arg("acked_seq"),
            py::arg("next_seq"), py::arg("is_marked"), py::arg("hops"))
        .def(
            "on_acks",
            [](Self& self, Array<TimePs> now_ps, Array<TimePs> rtt_ps, Array<std::int64_t> acked_bytes,
               Array<std::int64_t> acked_seq, Array<std::int64_t> next_seq, Array<bool> is_marked,
               Array<std::int64_t> hops) {
                return run_acks(self.controller, {now_ps, rtt_ps, acked_bytes, acked_seq, next_seq, is_marked, hops});
            },
            py::kw_only(), py::arg("now_ps"), py::arg("rtt_ps"), py::arg("acked_bytes"), py::arg("acked_seq"),
            py::arg("next_seq"), py::arg("is_marked"), py::arg("hops"))
        .def(
            "on_timer", [](Self& self, TimePs now_ps) { self.controller.on_timer(now_ps); }, py::arg("now_ps"))
        .def(
            "on_timeout", [](Self& self, TimePs now_ps) { self.controller.on_timeout(now_ps); }, py::arg("now_ps"))
        .def_property_readonly("rate_bps", [](const Self& self) { return self.controller.rate_bps(); })
        .def_property_readonly("next_timer_ps",
                               [](const Self& self) -> std::optional<TimePs> {
                                   const TimePs next = self.controller.next_timer_ps();
                                   return next == kNever ? std::nullopt : std::optional(next);
                               })
        .def_property_readonly_static("state_bytes", [](const py::object&) { return sizeof(Controller); });
}

template <typename Parameters, typename Controller, typename Value>
auto read(Value (Controller::*member)() const) {
    return [member](const Owned<Controller, Parameters>& self) { return (self.controller.*member)(); };
}

// Frozen fields, and a copy with some of them changed: `replace(gain=0.5)`.
template <typename Parameters>
class ParametersClass {
  public:
    ParametersClass(py::module_& module, const char* name) : class_(module, name) {
        class_.def("replace", [setters = setters_](const Parameters& self, const py::kwargs& changes) {
            Parameters changed = self;
            for (const auto& [field, value] : changes) {
                const auto found = setters->find(py::cast<std::string>(field));
                if (found == setters->end()) {
                    throw MisuseError("congestion control has no constant '" + py::cast<std::string>(field) + "'");
                }
                found->second(changed, value);
            }
            check(CongestionParameters(changed));
            return changed;
        });
        field("transport", &Parameters::transport);
    }

    template <typename Value>
    ParametersClass& field(const char* name, Value Parameters::* member) {
        class_.def_readonly(name, member);
        (*setters_)[name] = [member, name](Parameters& parameters, py::handle value) {
            parameters.*member = cast<Value>(name, value);
        };
        if constexpr (std::is_same_v<Value, RateStep>) set_bps(std::string(name) + "_bps", member);
        return *this;
    }

  private:
    using Setter = std::function<void(Parameters&, py::handle)>;

    // A rate step can also be given as a number, which then holds for any line: `additive_increase_bps=40_000_000`.
    void set_bps(const std::string& name, RateStep Parameters::* member) {
        (*setters_)[name] = [member, name](Parameters& parameters, py::handle value) {
            parameters.*member = RateStep{cast<std::int64_t>(name, value), std::nullopt};
        };
    }

    template <typename Value>
    static Value cast(const std::string& name, py::handle value) {
        try {
            return py::cast<Value>(value);
        } catch (const py::cast_error&) {
            throw MisuseError("congestion control: '" + name + "' cannot be " + std::string(py::repr(value)));
        }
    }

    std::shared_ptr<std::map<std::string, Setter>> setters_ = std::make_shared<std::map<std::string, Setter>>();
    py::class_<Parameters> class_;
};

void bind_parameters(py::module_& module) {
    py::enum_<SendWindow>(module, "SendWindow")
        .value("UNBOUNDED", SendWindow::unbounded)
        .value("FIXED", SendWindow::fixed)
        .value("VARIABLE", SendWindow::variable);
    py::class_<TransportSettings>(module, "TransportSettings")
        .def(py::init<SendWindow, bool>(), py::arg("window"), py::arg("acks_go_first"))
        .def_readonly("window", &TransportSettings::window)
        .def_readonly("acks_go_first", &TransportSettings::acks_go_first);
    py::class_<RateStep>(module, "RateStep")
        .def(py::init<std::int64_t, std::optional<std::int64_t>>(), py::arg("bps"),
             py::arg("per_line_bps") = py::none())
        .def_readonly("bps", &RateStep::bps)
        .def_readonly("per_line_bps", &RateStep::per_line_bps)
        .def("at", &RateStep::at, py::arg("line_bps"));

    ParametersClass<NoControlParameters>(module, "NoControlParameters");
    ParametersClass<DcqcnParameters>(module, "DcqcnParameters")
        .field("alpha_interval_ps", &DcqcnParameters::alpha_interval_ps)
        .field("decrease_interval_ps", &DcqcnParameters::decrease_interval_ps)
        .field("increase_interval_ps", &DcqcnParameters::increase_interval_ps)
        .field("gain", &DcqcnParameters::gain)
        .field("fast_recovery_steps", &DcqcnParameters::fast_recovery_steps)
        .field("additive_increase", &DcqcnParameters::additive_increase)
        .field("hyper_increase", &DcqcnParameters::hyper_increase)
        .field("min_rate_bps", &DcqcnParameters::min_rate_bps)
        .field("clamps_target", &DcqcnParameters::clamps_target);
    ParametersClass<HpccParameters>(module, "HpccParameters")
        .field("target_utilization", &HpccParameters::target_utilization)
        .field("max_additive_steps", &HpccParameters::max_additive_steps)
        .field("additive_increase", &HpccParameters::additive_increase)
        .field("min_rate_bps", &HpccParameters::min_rate_bps)
        .field("reacts_within_rtt", &HpccParameters::reacts_within_rtt);
    ParametersClass<TimelyParameters>(module, "TimelyParameters")
        .field("gain", &TimelyParameters::gain)
        .field("beta", &TimelyParameters::beta)
        .field("low_rtt_ps", &TimelyParameters::low_rtt_ps)
        .field("high_rtt_ps", &TimelyParameters::high_rtt_ps)
        .field("min_rtt_ps", &TimelyParameters::min_rtt_ps)
        .field("steps_before_hyper", &TimelyParameters::steps_before_hyper)
        .field("additive_increase", &TimelyParameters::additive_increase)
        .field("hyper_increase", &TimelyParameters::hyper_increase)
        .field("min_rate_bps", &TimelyParameters::min_rate_bps);
    ParametersClass<DctcpParameters>(module, "DctcpParameters")
        .field("gain", &DctcpParameters::gain)
        .field("additive_increase", &DctcpParameters::additive_increase)
        .field("min_rate_bps", &DctcpParameters::min_rate_bps);
}

}  // namespace

void bind_congestion(py::module_& module) {
    bind_parameters(module);
    module.def("congestion_presets", &congestion_presets, py::arg("scheme"));
    module.def("congestion_preset", &congestion_preset, py::arg("scheme"), py::arg("preset") = "");
    module.attr("MAX_INT_HOPS") = kMaxIntHops;

    bind_controller<CongestionControl, CongestionParameters>(module, "CongestionControl");
    bind_controller<Dcqcn, DcqcnParameters>(module, "Dcqcn")
        .def_property_readonly("target_bps", read<DcqcnParameters>(&Dcqcn::target_bps))
        .def_property_readonly("increase_stage", read<DcqcnParameters>(&Dcqcn::increase_stage))
        .def(
            "alpha_at",
            [](const Owned<Dcqcn, DcqcnParameters>& self, TimePs now_ps) { return self.controller.alpha_at(now_ps); },
            py::arg("now_ps"));
    bind_controller<Hpcc, HpccParameters>(module, "Hpcc")
        .def_property_readonly("utilization", read<HpccParameters>(&Hpcc::utilization))
        .def_property_readonly("committed_bps", read<HpccParameters>(&Hpcc::committed_bps))
        .def_property_readonly("additive_steps", read<HpccParameters>(&Hpcc::additive_steps));
    bind_controller<Timely, TimelyParameters>(module, "Timely")
        .def_property_readonly("gradient", read<TimelyParameters>(&Timely::gradient))
        .def_property_readonly("increases", read<TimelyParameters>(&Timely::increases));
    bind_controller<Dctcp, DctcpParameters>(module, "Dctcp")
        .def_property_readonly("alpha", read<DctcpParameters>(&Dctcp::alpha));
}

}  // namespace netsim
