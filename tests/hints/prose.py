"""Hints that no test can follow, each with the reason."""

PROSE: dict[str, str] = {
    "{}aws sts get-caller-identity --profile {} shows the reason.": "needs the aws tool and an account",
}
