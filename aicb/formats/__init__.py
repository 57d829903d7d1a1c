"""File formats: tables of operators, layer times for other simulators, measured tables of others."""
