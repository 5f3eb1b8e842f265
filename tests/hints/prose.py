"""Hints that no test can follow, each with the reason."""

PROSE: dict[str, str] = {
    "install torch 2.6 or later.": "needs another version of torch",
    "use the version of tarmac that saved it.": "needs another version of tarmac",
    "{}aws sts get-caller-identity --profile {} shows the reason.": "needs the aws tool and an account",
}
