"""Find the local files that a Python file imports, without importing them."""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_INSTALLED = ("site-packages", "dist-packages")


def imported_files(path: str, root: str) -> list[str]:
    """Return the file, then the files below `root` that it imports, directly or through others, by name.

    Imports of installed packages are not followed: their versions change with the environment, not with the
    user's code.
    """
    path, root = os.path.abspath(path), os.path.abspath(root)
    seen, new = {path}, [path]
    while new and not set(Path(root).parts).intersection(_INSTALLED):
        with contextlib.suppress(OSError, SyntaxError, ValueError):  # importing the file shows these errors
            for module in _imports(new.pop(), root):
                for file in (f"{module}.py", os.path.join(module, "__init__.py")):
                    if file not in seen and os.path.isfile(file):
                        seen.add(file)
                        new.append(file)
    return [path, *sorted(seen - {path})]


def _imports(path: str, root: str) -> Iterator[str]:
    """Yield the path, without extension, of each module or package that a file may import."""
    for node in ast.walk(ast.parse(Path(path).read_bytes())):
        if isinstance(node, ast.Import):
            names, base = [alias.name for alias in node.names], root
        elif isinstance(node, ast.ImportFrom):
            names = [".".join(filter(None, (node.module, alias.name))) for alias in node.names]
            above = Path(path).parents
            base = str(above[min(node.level, len(above)) - 1]) if node.level else root
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (os.path.join(base, *parts[:count]) for count in range(1, len(parts) + 1))
