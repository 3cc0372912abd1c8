"""The reference topics of CPython's `help()`, about 465,000 characters of English and code.

They come with Python, so no download is needed; they differ between Python versions.
"""

import platform

from attnlab.data.corpora.corpus import Corpus, of


def pydocs_corpus() -> Corpus:
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    return of("pydocs", text.encode(), "data=pydocs", origin=f"python {platform.python_version()}")
