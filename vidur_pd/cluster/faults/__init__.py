"""Scripted failures and slow-downs, and what becomes of the requests that they hit.

`config` is what a file says, `plan` what it means on a cluster, `script` makes it happen, `recovery` begins requests
again.
"""
