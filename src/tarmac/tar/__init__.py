"""Bytes to members and back, with the standard library alone."""

from tarmac.tar.reader import Member, Readable, Repeated, TarOptions, check_beginning, read_members
from tarmac.tar.writer import TarFormat, member_block

__all__ = [
    "check_beginning",
    "Member",
    "member_block",
    "read_members",
    "Readable",
    "Repeated",
    "TarFormat",
    "TarOptions",
]
