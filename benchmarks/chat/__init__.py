"""Conversations judged by programs: `halfsec bench chat`."""
