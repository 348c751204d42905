"""Stock clients, unchanged, each in its own environment. See README.md."""
