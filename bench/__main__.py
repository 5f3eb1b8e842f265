"""`python -m bench`: measure tarmac beside webdataset; non-zero exit when a required ratio is missed."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bench import measure, report
from bench.proxy import delaying
from bench.registry import Site, all_cases


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    cases = [case for name, case in all_cases().items() if options.chooses(name)]
    if not cases:
        print(f"no case has {' or '.join(map(repr, options.only))} in its name", file=sys.stderr)
        return 2
    site = Site(options.data.resolve(), options.small, options.big)
    progress = Console(stderr=True)
    with ExitStack() as stack:
        if any("nginx" in case.needs for case in cases):
            site = _serve(site, stack)
        with progress.status("starting") as status:
            results = [measure.run_case(case, site, options.repeat, status.update) for case in cases]
    if options.json:
        print(json.dumps(report.as_json(results), indent=2))
    elif options.markdown:
        print("\n".join(report.as_markdown(results)))
    else:
        console = Console()
        console.width = max(console.width, 170) if not console.is_terminal else console.width
        report.print_table(results, console)
    return 1 if any(result.missed for result in results) and not options.no_fail else 0


class Options(argparse.Namespace):
    """The arguments of a run."""

    only: list[str]
    skip: list[str]

    def chooses(self, name: str) -> bool:
        """Return whether a case of this name is measured."""
        chosen = not self.only or any(text.lower() in name.lower() for text in self.only)
        return chosen and not any(text.lower() in name.lower() for text in self.skip)


def _parse(arguments: list[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    for name, what in (("only", "only cases with this in their names"), ("skip", "no cases with this")):
        text = f"{what}; can be repeated"
        parser.add_argument(f"--{name}", action="append", default=[], metavar="TEXT", help=text)
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="runs of each side (5)")
    parser.add_argument(
        "--data", type=Path, default=measure.ROOT / "bench" / "data", help="where data is kept"
    )
    parser.add_argument("--small", type=int, default=Site.small, metavar="N", help="samples of 800 bytes")
    parser.add_argument("--big", type=int, default=Site.big, metavar="N", help="samples of 80 KB")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--markdown", action="store_true", help="print a table for the documents")
    parser.add_argument("--no-fail", action="store_true", help="exit with 0 whatever was measured")
    return parser.parse_args(arguments, Options())


def _serve(site: Site, stack: ExitStack) -> Site:
    """Put nginx in front of the data, with the means of the tests; without nginx its cases are skipped."""
    sys.path.insert(0, str(measure.ROOT / "tests"))
    from harness.servers import MissingComponent, nginx

    site.data.mkdir(parents=True, exist_ok=True)
    try:
        url = stack.enter_context(nginx(site.data))
    except MissingComponent:
        return site
    return replace(site, http=url, slow=stack.enter_context(delaying(url)))


if __name__ == "__main__":
    sys.exit(main())
