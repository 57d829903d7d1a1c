"""Runs of configurations, ended early where they are certain to miss, and what they found."""
