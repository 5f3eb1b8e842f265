"""Hints that no test can follow, each with the reason."""

PROSE: dict[str, str] = {
    "install torch 2.6 or later.": "needs another version of torch",
    "install the same version of tarmac on all workers.": "needs another machine; see jobs/engines/test_dask.py",
    "install the same versions of Python and tarmac on all workers.": "needs another version of tarmac",
    "stop it, or start the job in another process.": "needs a server of Spark Connect",
    "use the version of tarmac that saved it.": "needs another version of tarmac",
    "{}aws sts get-caller-identity --profile {} shows the reason.": "needs the aws tool and an account",
}
