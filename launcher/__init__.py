"""The command line: `rueda run` starts a job, `rueda check` shows what is built and found.

It communicates with the library only through environment variables, and can be imported without
the native extension, so that `rueda check` can report that the extension is missing.
"""
