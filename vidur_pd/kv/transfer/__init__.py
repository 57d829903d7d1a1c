"""KV transfers: the cache of requests on its way from prefill to decode instances.

`hand_over` keeps the books and deals with failures, `modes` decide when blocks are reserved and KV is sent,
`first_token` says who produces the first token, `delivery` and `sender` put flows on the network.
"""
