"""A simulation: its plan, its state, the life of requests, what faults do, the driver, and the library's door."""

from boundary.cycles import imports_stay

with imports_stay():  # 600 modules come with these; searches would be a tenth of the time that they take
    from vidur_pd.simulation.driver import Progress
    from vidur_pd.simulation.simulation import Simulation

__all__ = ["Progress", "Simulation"]
