"""Threads, worker processes, bounded look-ahead, rank and worker identity, seeds, error budgets."""
