"""Rueda inside other engines, each in an environment of its own."""
