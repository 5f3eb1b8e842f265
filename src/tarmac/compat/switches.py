"""Switches of the webdataset library that are variables of its modules, kept working as such."""

from __future__ import annotations

from types import ModuleType

from tarmac.storage import security

__all__ = ["UtilsModule"]


class UtilsModule(ModuleType):
    """The class of `webdataset.utils`: assigning to `enforce_security` switches secure mode."""

    @property
    def enforce_security(self) -> bool:
        """Whether secure mode is on."""
        return security.is_secure()

    @enforce_security.setter
    def enforce_security(self, on: bool) -> None:
        security.enforce_security(bool(on))
