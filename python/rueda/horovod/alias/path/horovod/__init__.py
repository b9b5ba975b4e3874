"""Stands for Horovod where this folder is on the path; replaced by rueda.horovod when imported."""

from rueda.horovod.alias import install

install()
