"""What a cluster costs, and what it draws in addition to its GPUs. No price has a default: prices are of contracts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from aicb import canonical_gpu, get_gpu
from boundary.errors import InputError
from boundary.fields import NotBool, PositiveFloat, Section
from boundary.yaml_text import read_yaml_mapping

Amount = Annotated[float, NotBool, Field(ge=0, le=1e9, allow_inf_nan=False)]


class PricesConfig(Section):
    """A price list: fields, or the name of a YAML file with them. Without one a run has no costs."""

    gpu_hour: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Of one GPU, by its name, with what belongs to it: server, its share of the network, building."""
    electricity_kwh: Amount = 0.0
    """Of a kilowatt-hour of all that `power` counts; 0: it is in the price of GPUs."""
    currency: Annotated[str, Field(max_length=20)] = ""
    as_of: Annotated[str, Field(max_length=40)] = ""
    """When, and from whom: shown with every cost."""

    @model_validator(mode="before")
    @classmethod
    def _of_file(cls, tree: Any) -> Any:
        tree = read_yaml_mapping(Path(tree), "a price list") if isinstance(tree, str) else tree
        prices = tree.get("gpu_hour") if isinstance(tree, Mapping) else None
        if not isinstance(prices, Mapping):
            return tree
        return {**tree, "gpu_hour": {canonical_gpu(str(gpu)): price for gpu, price in prices.items()}}

    @model_validator(mode="after")
    def _has_prices(self) -> PricesConfig:
        if not self.gpu_hour:
            raise ValueError("gpu_hour: missing, expected the price of each GPU per hour, as {h200: 3.5}")
        return self


class PowerConfig(Section):
    """Power of what is around GPUs, which draws it all the time. 0: not counted."""

    nic_w: Amount = 0.0
    """Of one NIC with its transceiver (one for 400 Gbit/s over single mode fibre draws 9 W: MMS4X00-NS400
    specification of NVIDIA)."""
    switch_port_w: Amount = 0.0
    """Of one port of a switch between servers, its share of the switch and its transceiver."""
    host_w_per_gpu: Amount = 0.0
    """CPUs, memory, fans and NVSwitches of a server, over its GPUs."""
    pue: Annotated[float, NotBool, Field(ge=1, le=10)] = 1.0
    """Power of the building over that of what computes."""


def hourly_price(prices: Mapping[str, float], hardware: str) -> float:
    """Of one GPU, which a configuration names, by that name or by the one in its description.

    Raises: InputError, where there is none.
    """
    found = prices.get(hardware, prices.get(get_gpu(hardware).name))
    if found is None:
        raise InputError(f"prices: found none for {hardware}, expected the price of each GPU per hour")
    return found
