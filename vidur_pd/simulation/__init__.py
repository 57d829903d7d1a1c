"""A simulation: its plan, its state, the life of requests, what faults do, the driver, and the library's door."""

from boundary.cycles import few_searches_for_cycles

with few_searches_for_cycles():  # of the 0.4 s that these imports take with all that they bring, 0.05 s were searches
    from vidur_pd.simulation.driver import Progress
    from vidur_pd.simulation.simulation import Simulation

__all__ = ["Progress", "Simulation"]
