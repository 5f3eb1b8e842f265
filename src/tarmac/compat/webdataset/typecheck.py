"""`webdataset.typecheck`: in the webdataset library, importing it checks types at run time, if typeguard is installed.

Here it does nothing: the types of tarmac are checked by mypy.
"""

modules: list[str] = []
