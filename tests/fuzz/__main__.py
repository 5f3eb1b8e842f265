"""Coverage-guided fuzzing with atheris: `make fuzz`, or `python -m tests.fuzz --target reader`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path.insert(0, str(TESTS))


def fuzz(target: str, seconds: int, findings: Path) -> None:
    """Fuzz one target in this process; libFuzzer ends the process itself."""
    import atheris

    with atheris.instrument_imports(include=["tarmac"]):
        from fuzz.targets import TARGETS
    atheris.Setup(
        [
            sys.argv[0],
            f"-max_total_time={seconds}",
            f"-artifact_prefix={findings}/{target}-",
            "-max_len=16384",
            "-timeout=5",
            "-rss_limit_mb=512",
            "-print_final_stats=1",
            str(findings / f"{target}-corpus"),
            str(TESTS / "corpus"),
        ],
        TARGETS[target],
    )
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--findings", type=Path, default=Path("build/fuzz"))
    arguments = parser.parse_args()
    if arguments.target:
        (arguments.findings / f"{arguments.target}-corpus").mkdir(parents=True, exist_ok=True)
        fuzz(arguments.target, arguments.seconds, arguments.findings)
        return 0
    from fuzz.targets import TARGETS

    failed = []
    for target in TARGETS:
        command = [
            sys.executable,
            "-m",
            "tests.fuzz",
            "--target",
            target,
            "--seconds",
            str(arguments.seconds),
        ]
        if subprocess.run([*command, "--findings", str(arguments.findings)], check=False).returncode:
            failed.append(target)
    print(f"{len(TARGETS)} targets, findings in: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
