"""The command line: `rueda run` starts a job, `rueda check` says what is built and found.

It speaks to the library through environment variables only and imports without the native
extension, so that `rueda check` can say that the extension is missing.
"""
