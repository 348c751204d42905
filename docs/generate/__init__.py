"""Reference pages of the documentation, generated from the code.

MkDocs takes them through `docs/hooks.py`; nothing is written to the repository.
`python -m docs.generate DIR` writes them to a folder.
"""
