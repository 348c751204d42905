"""Language models on servers of their own, behind the session's chat port."""
