"""Stands in for Horovod if this directory is on the path; on import, rueda.horovod replaces it."""

from rueda.horovod.alias import install

install()
