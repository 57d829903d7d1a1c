"""KV caches outside of the ranks that computed them: on their way from prefill to decode, and in tiers."""
