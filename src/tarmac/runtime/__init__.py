"""Threads, worker processes, rank and worker identity, seeds: what both doors and the jobs run on."""
