"""The commands ``netsim run`` and ``netsim topology``."""
