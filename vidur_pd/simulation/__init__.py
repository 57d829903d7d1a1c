"""A simulation: its plan, its state, the life of requests, what faults do, the driver, and the library's door."""

from vidur_pd.simulation.driver import Progress
from vidur_pd.simulation.simulation import Simulation

__all__ = ["Progress", "Simulation"]
