"""The packet model beside published figures of other packet simulators: htsim, ns-3-alibabacloud, HPCC."""
def reference_tables(): return {}
