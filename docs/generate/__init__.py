"""Source of the documentation site: the written pages, and reference pages from the code.

`python -m docs.generate DIR` writes all of it to a folder, which MkDocs reads; nothing generated
is kept in the repository. The folder is plain Markdown: MkDocs 1 has no maintained theme beyond
2027, and its successors run no hooks.
"""
