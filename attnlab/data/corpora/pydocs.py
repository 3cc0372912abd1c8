"""The reference topics of CPython's `help()`, about 465,000 characters of English and code.

They are part of Python, so no download is needed; they differ between Python versions.
"""

import platform

from attnlab.data.corpora.corpus import Corpus, build_corpus


def load_pydocs_corpus() -> Corpus:
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    return build_corpus("pydocs", text.encode(), "data=pydocs", origin=f"python {platform.python_version()}")
