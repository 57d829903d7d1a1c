"""From a simulation to a decision: the capacity of a cluster, and the deployment that serves a workload best."""
