"""Kills by the hundred: a job on a real Spark with real Delta loses one of its processes and must not show it afterwards.

``make kills`` runs them, each drawn from a seed and its number; ``python -m tests.kills.table`` tells what they cost.
"""
