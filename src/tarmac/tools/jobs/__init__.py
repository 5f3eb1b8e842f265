"""Run jobs on clusters, and look at jobs wherever they run.

Scripts for Slurm, Jobs for Kubernetes, and what ledgers and leases say: `status`, `log`, `retry`, `finish`.
"""

from __future__ import annotations

from tarmac.tools.jobs.finish import Finished, finish, retry
from tarmac.tools.jobs.kubernetes import KubernetesOptions, kubernetes_job, kubernetes_yaml
from tarmac.tools.jobs.log import LogEntry, log
from tarmac.tools.jobs.slurm import SlurmOptions, slurm_script, submit_slurm
from tarmac.tools.jobs.status import JobStatus, status

__all__ = [
    "finish",
    "Finished",
    "JobStatus",
    "kubernetes_job",
    "kubernetes_yaml",
    "KubernetesOptions",
    "log",
    "LogEntry",
    "retry",
    "slurm_script",
    "SlurmOptions",
    "status",
    "submit_slurm",
]
