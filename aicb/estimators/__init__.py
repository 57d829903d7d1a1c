"""Estimators of kernel times: measured tables with interpolation (default), forests on them, transfer, the roofline."""
