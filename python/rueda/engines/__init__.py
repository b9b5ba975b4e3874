"""What Rueda's modules for other engines share: versions they can work with, ranks by host, whose error counts."""
